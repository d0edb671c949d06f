/* A new directory of plain files, written under another name and renamed when it is complete. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "format.h"

weft_status weft__new_dir_make(struct weft__new_dir *dir, const char *target, weft_error *err)
{
    struct stat st;
    size_t len = strlen(target);
    while (len > 1 && target[len - 1] == '/') len--;
    (void)snprintf(dir->target, sizeof dir->target, "%.*s",
                   (int)weft__min((int64_t)len, WEFT__MAX_PATH), target);
    int size =
        snprintf(dir->partial, sizeof dir->partial, "%s.partial-%ld", dir->target, (long)getpid());
    if (len == 0 || size >= WEFT__MAX_PATH)
        return weft__fail(err, WEFT_INVALID, "%.200s: not a usable path", target);
    if (lstat(dir->target, &st) == 0)
        return weft__fail(err, WEFT_INVALID, "%s: exists already; choose another name",
                          dir->target);
    if (mkdir(dir->partial, 0777) != 0)
        return weft__fail(err, WEFT_IO, "%s: %s", dir->target, strerror(errno));
    return WEFT_OK;
}

weft_status weft__new_dir_room(const struct weft__new_dir *dir, uint64_t bytes, weft_error *err)
{
    struct statvfs fs;
    if (statvfs(dir->partial, &fs) != 0) return WEFT_OK; /* writing will tell */
    uint64_t have = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (bytes <= have) return WEFT_OK;
    return weft__fail(err, WEFT_IO,
                      "%s: %.3f GB are needed but the disk has %.3f GB free; free some space or "
                      "choose another place",
                      dir->target, (double)bytes / 1e9, (double)have / 1e9);
}

weft_status weft__new_dir_publish(const struct weft__new_dir *dir, weft_error *err)
{
    int fd = open(dir->partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); /* the names; not every file system can */
        (void)close(fd);
    }
    int failed = renameat2(AT_FDCWD, dir->partial, AT_FDCWD, dir->target, RENAME_NOREPLACE);
    /* Where the kernel or the file system lacks it: a name taken meanwhile by a non-empty
     * directory or by a file still fails. */
    if (failed && (errno == EINVAL || errno == ENOSYS)) failed = rename(dir->partial, dir->target);
    if (!failed) return WEFT_OK;
    return weft__fail(err, WEFT_IO, "%s: %s", dir->target, strerror(errno));
}

void weft__new_dir_remove(const struct weft__new_dir *dir)
{
    DIR *entries = opendir(dir->partial);
    if (entries == NULL) return;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        (void)unlinkat(dirfd(entries), entry->d_name, 0);
    (void)closedir(entries);
    (void)rmdir(dir->partial);
}

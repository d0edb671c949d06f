/* One decision for every source: what power, utilisation and, where they are known, steps say of a
 * GPU, a package or a rank; and the thresholds it decides by. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"

/* Defaults for machines nobody calibrated, in shares of the power limit: on a 600 W card a kernel
 * that only polls drew 0.20 to 0.25, memory-bound work 0.67, a matrix product 1. */
const struct weft__thresholds weft__thresholds_default = {.spin_below = 0.35, .working_from = 0.6};

static const double BUSY_FROM = 95, IDLE_BELOW = 5, STARVED_FROM = 0.5, THROTTLED_FROM = 0.1;

const struct weft__verdict_words weft__verdict_words[] = {
#define X(name, word, meaning, next) {word, meaning, next},
    WEFT__VERDICTS(X)
#undef X
};

void weft__mean_add(struct weft__mean *mean, double value)
{
    if (isnan(value)) return;
    if (mean->count == 0 || value < mean->low) mean->low = value;
    if (mean->count == 0 || value > mean->high) mean->high = value;
    mean->sum += value;
    mean->count++;
}

double weft__mean_of(const struct weft__mean *mean)
{
    return mean->count > 0 ? mean->sum / (double)mean->count : NAN;
}

/* ---- from power and utilisation alone ---- */

static enum weft__verdict by_power(double busy, double share, const struct weft__thresholds *t)
{
    if (isnan(busy) || isnan(share)) return WEFT__VERDICT_NO_DATA;
    if (busy < IDLE_BELOW) return share < t->spin_below ? WEFT__VERDICT_IDLE : WEFT__VERDICT_LOW;
    if (share >= t->working_from) return WEFT__VERDICT_WORKING;
    return busy >= BUSY_FROM && share < t->spin_below ? WEFT__VERDICT_SPIN : WEFT__VERDICT_LOW;
}

/* Of the verdict's words, not of a cause: many steady samples far from a threshold are high; few,
 * or of several phases, or close to one, are low. That nothing polls memory is what makes a spin
 * sure. */
static const char *power_confidence(const struct weft__evidence *e, const struct weft__judged *j,
                                    const struct weft__thresholds *t)
{
    double memory = weft__mean_of(&e->memory);
    double margin = fmin(fabs(j->share - t->spin_below), fabs(j->share - t->working_from));
    if (j->verdict == WEFT__VERDICT_NO_DATA || e->samples < 3 || margin < 0.03 ||
        e->busy.high - e->busy.low > 50)
        return "low";
    if (j->verdict == WEFT__VERDICT_SPIN && memory > 20) return "low";
    if (e->samples < 10 || margin < 0.1 || (j->verdict == WEFT__VERDICT_SPIN && !(memory <= 5)) ||
        j->verdict == WEFT__VERDICT_LOW)
        return "medium";
    return "high";
}

/* ---- from steps ---- */

static double wait_share(const struct weft__evidence *e)
{
    double step = e->compute_s + e->moving_s + e->waiting_s;
    return step > 0 ? (e->moving_s + e->waiting_s) / step : 0;
}

static enum weft__verdict by_steps(const struct weft__evidence *e)
{
    double step = e->compute_s + e->moving_s + e->waiting_s;
    double busy = weft__mean_of(&e->busy), median = e->steps > 0 ? step / e->steps : 0;
    bool stalled = e->stalled_s > fmax(5, 50 * median);
    if (stalled && !(busy < BUSY_FROM)) return WEFT__VERDICT_SPINNING;
    if (step + e->sampling_s < IDLE_BELOW / 100 * e->wall_s) return WEFT__VERDICT_IDLE;
    if (e->throttled >= THROTTLED_FROM) return WEFT__VERDICT_THROTTLED;
    return wait_share(e) >= STARVED_FROM ? WEFT__VERDICT_STARVED : WEFT__VERDICT_WORKING;
}

static const char *step_confidence(const struct weft__evidence *e, enum weft__verdict verdict)
{
    bool close = (verdict == WEFT__VERDICT_STARVED || verdict == WEFT__VERDICT_WORKING) &&
                 fabs(wait_share(e) - STARVED_FROM) < 0.1;
    if (verdict == WEFT__VERDICT_IDLE || verdict == WEFT__VERDICT_SPINNING)
        return e->wall_s >= 10 ? "high" : "medium";
    if (e->steps < 3) return "low";
    return e->steps < 10 || close ? "medium" : "high";
}

void weft__judge(const struct weft__evidence *e, const struct weft__thresholds *t,
                 struct weft__judged *out)
{
    out->share = weft__mean_of(&e->power) / e->limit_w;
    out->verdict = e->steps_known ? by_steps(e) : by_power(weft__mean_of(&e->busy), out->share, t);
    out->confidence =
        e->steps_known ? step_confidence(e, out->verdict) : power_confidence(e, out, t);
}

json_t *weft__thresholds_json(const struct weft__thresholds *t)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:b}", "spin_below", t->spin_below,
                     "working_from", t->working_from, "busy_from_percent", BUSY_FROM,
                     "idle_below_percent", IDLE_BELOW, "starved_from", STARVED_FROM,
                     "throttled_from", THROTTLED_FROM, "calibrated", (int)t->calibrated);
}

/* ---- what `weft bench calibrate` stored ---- */

bool weft__thresholds_of(const struct weft__profile *p, struct weft__thresholds *out)
{
    double span = p->compute_w - p->idle_w, margin = 0.15 * span;
    double spin = p->spin_w + margin, work = p->memory_w - margin;
    if (!(p->limit_w > 0) || !(span > 0) || !(p->idle_w > 0)) return false;
    /* A spin that draws as much as memory traffic can't be told from it: only what draws more. */
    *out = (struct weft__thresholds){.spin_below = spin / p->limit_w,
                                     .working_from = fmax(spin, work) / p->limit_w,
                                     .calibrated = true};
    return true;
}

weft_status weft__profiles_load(const char *path, struct weft__profiles *out, weft_error *err)
{
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error), *entry;
    json_t *list = json_object_get(root, "profiles");
    struct weft__thresholds ignored;
    size_t i;
    *out = (struct weft__profiles){0};
    bool good = json_is_array(list) && json_array_size(list) <= WEFT__METERS_MAX;
    json_array_foreach (list, i, entry) {
        if (!good) break;
        struct weft__profile *p = &out->profile[out->count++];
        const char *name;
        good = json_unpack(entry, "{s:s, s:F, s:F, s:F, s:F, s:F}", "name", &name, "limit_w",
                           &p->limit_w, "idle_w", &p->idle_w, "spin_w", &p->spin_w, "memory_w",
                           &p->memory_w, "compute_w", &p->compute_w) == 0 &&
               weft__thresholds_of(p, &ignored);
        if (good) (void)snprintf(p->name, sizeof p->name, "%s", name);
    }
    json_decref(root);
    if (good) return WEFT_OK;
    return weft__fail(err, WEFT_FORMAT,
                      "%.200s: not what weft bench calibrate --output writes%s%.100s", path,
                      root == NULL ? ": " : "", root == NULL ? error.text : "");
}

struct weft__thresholds weft__profiles_find(const struct weft__profiles *profiles, const char *name)
{
    struct weft__thresholds found = weft__thresholds_default;
    for (int i = 0; i < profiles->count; i++)
        if (name == NULL || strcmp(profiles->profile[i].name, name) == 0) {
            (void)weft__thresholds_of(&profiles->profile[i], &found);
            break;
        }
    return found;
}

/* The console's page, one file, inside the program. */
    .section .rodata
    .globl weft__console_start, weft__console_end
    .hidden weft__console_start, weft__console_end
weft__console_start:
    .incbin "console.html"
weft__console_end:
    .section .note.GNU-stack, "", @progbits

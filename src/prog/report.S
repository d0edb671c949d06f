/* The page of `weft bench --report`, one file, inside the program. */
    .section .rodata
    .globl weft__report_start, weft__report_end
    .hidden weft__report_start, weft__report_end
weft__report_start:
    .incbin "report.html"
weft__report_end:
    .section .note.GNU-stack, "", @progbits

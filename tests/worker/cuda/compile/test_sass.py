"""What a kernel is made of, counted."""

from cudal2.worker.cuda.compile import sass


def test_operations_are_counted_without_guards_modifiers_labels_and_padding():
    lines = [
        b".text.gemm:",
        b"        /*0000*/                   LDC R1, c[0x0][0x28] ;",
        b"        /*0010*/              @!P0 HMMA.16816.F32 R4, R8, R10, R4 ;",
        b"        /*0020*/             @UP1 HMMA.16816.F32 R4, R8, R10, R4 ;",
        b"        /*0030*/                   NOP ;",
        b".L_x_0:  // NOP",
    ]
    assert list(sass.count_operations(lines).items()) == [("HMMA", 2), ("LDC", 1)]

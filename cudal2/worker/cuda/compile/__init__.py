"""From source to a cubin that has passed the gate: the compiler, its headers, the published ABI, the disassembler."""

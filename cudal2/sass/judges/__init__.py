"""Who says how fast an edited schedule is: the GPU, or a simulator where there is none."""

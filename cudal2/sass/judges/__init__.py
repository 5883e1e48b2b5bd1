"""The judges of edited schedules: the GPU, or a simulator where there is none."""

"""What a process of foreign code may not do: bubblewrap, or Landlock and seccomp, and limits."""

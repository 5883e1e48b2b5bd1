"""Training: supervised (`sft`) and by reinforcement with GRPO (`grpo`)."""

"""How a step's completions are drawn: by the trainer's own model, or by vLLM, in its process or on a server."""

"""A Llama-family decoder on torch CPU, one idea a file, built so that a scheduler controls every step."""

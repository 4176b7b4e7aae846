"""A causal language model of Hugging Face transformers in this process: the kind of deployment where vLLM is not."""

"""Models as the Hugging Face hub keeps them: configurations, families, headers of weights, adapters."""

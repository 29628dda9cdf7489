"""OCR models that people choose instead of DeepSeek-OCR, after transformers' own classes."""

"""DeepSeek-OCR-2: SAM, a Qwen2 decoder as encoder, a projector, and DeepSeek-OCR's decoder."""

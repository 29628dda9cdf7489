"""Shared by DeepSeek-OCR and its relatives: encoders, projector, decoder, and page handling."""

"""What DeepSeek-OCR and its relatives share: encoders, projector, decoder, and how pages run."""

"""Neighbours of DeepSeek-OCR: a file of code and one of data each, and what they share."""

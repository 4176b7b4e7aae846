"""What all formats share: decoding, sentences, raised characters, tables as text; and plain text."""

"""Documents as tests compare them."""


def outline(document):
    """Titles of the sections, each with the texts of its paragraphs."""
    return [(section.title, [paragraph.text for paragraph in section.paragraphs]) for section in document.sections]


def texts(document):
    """The texts of all paragraphs."""
    return [text for _, texts in outline(document) for text in texts]


def sentences(paragraph):
    """The texts of a paragraph's sentences."""
    return [paragraph.text[span.start : span.end] for span in paragraph.sentences]

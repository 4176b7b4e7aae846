import re

from hypothesis import given
from hypothesis import strategies as st
from kit.rows import check_rows

from kohaku_ray.documents.lean_imports import nltk_module
from kohaku_ray.documents.text.sentences import MAX_CHARS
from kohaku_ray.systems.hybrid import french as module
from kohaku_ray.systems.hybrid.french import split_french


def texts(text, split=split_french):
    return [text[span.start : span.end] for span in split(text)]


@check_rows(
    "text",
    [
        "M. Dupont et Mme. Le Gall ont reçu MM. Roy et Petit.",
        "Me. Durand plaide pour MM. Roy.",
        "M. Le Pen et Mlle. Durand arrivent.",
        "Le Dr. Martin et le Pr. Blanc opèrent.",
        "Il cite l'art. 5 du code et l'art. L. 123-4.",
        "Voir l'art. IV et le chap. 3, pp. 12-14, fig. B.",
        "Des fruits, p. ex. Des Pommes, sont vendus.",
        "Des fruits, c.-à-d. Pommes et poires.",
        "Rome, fondée en 753 av. J.-C., grandit.",
        "J.-P. Martin et J. Le Goff écrivent.",
        "Le 12 sept. 2024 et le 3 janv. 2025, rien.",
        "Le col. Martin et le gén. Dupuis parlent.",
        "Il a cité Martin et al. 2021.",
        "Ils vivent av. Foch et bd. Voltaire, à St. Malo.",
        "Cela coûte 1.234,5 euros ou 3.5 euros.",
        "La loi env. 12 articles, cf. Journal officiel.",
        "« Que faire ? », demande-t-il.",
        "« Que faire\u00a0? » demande-t-elle.",
        "Des pommes, des poires, etc. sont vendues.",
        "Il attend… puis il part.",
        "1. Introduction",
        "Consultez https://a.example/x.y?z=1.2 vite.",
    ],
)
def test_does_not_split(text):
    assert texts(text) == [text]


@check_rows(
    ("first", "second"),
    [
        ("Il est tombé 12 mm.", "Les rivières montent."),
        ("Il aime l'art.", "Le musée ouvre."),
        ("De l'art.", "L'exposition ouvre."),
        ("Ils étaient sept.", "Marie est partie."),
        ("La réponse est no.", "Rien de plus."),
        ("Elle manque de vitamine C.", "Les fruits en donnent."),
        ("C'était en 52 av. J.-C.", "Les Gaulois perdent."),
        ("Des pommes, etc.", "Paris en manque."),
        ("« Nous irons. »", "Il part."),
        ("Il part.", "« Nous irons », dit-elle."),
        ("Il part.", "«\u00a0Nous irons\u00a0», dit-elle."),
        ("“Non !”", "Il part."),
        ("Qui vient ?", "Personne !"),
        ("Il attend…", "Puis il part."),
        ("Cela a duré jusqu'en 2023.", "Les travaux reprennent."),
        ("Ils gagnent 3,5 %.", "Le taux monte."),
        ("Fin (voir ci-dessous.)", "Suite du texte."),
        ("Ils sont montés au col.", "Il neigeait."),
        ("À l'arrêt.", "À la gare, rien."),
        ("Il est né.", "Écoutez-le."),
        ("tout en minuscules.", "rien ici."),
    ],
)
def test_splits_at_a_real_end(first, second):
    assert texts(f"{first} {second}") == [first, second]


def test_blank_lines_and_list_items_break():
    assert texts("Titre\n\nUn texte. Un autre.\n- un\n- deux") == ["Titre", "Un texte.", "Un autre.", "- un", "- deux"]


PIECES = st.sampled_from(re.findall(r"[^|]+", "M. |art. |5|Le |été|. |? |« | »|…|J.-C. |\n\n|- |C. |(|) |’|\u00a0"))
ANY = st.one_of(st.text(), st.lists(PIECES, max_size=60).map("".join), PIECES.map(lambda piece: piece * 2500))


@given(ANY)
def test_spans_are_trimmed_ordered_bounded_and_lose_nothing(text):
    behind = 0
    for span in split_french(text):
        assert behind <= span.start < span.end <= len(text)
        assert span.end - span.start <= MAX_CHARS
        assert text[span.start : span.end] == text[span.start : span.end].strip()
        assert not text[behind : span.start].strip()
        behind = span.end
    assert not text[behind:].strip()


WORDS = re.findall(
    r"\S+", "le Pont été mme Mme. art sept etc J.-C M no 5 kg [12] 2024 C « » Le Il . . . … , ! ? (voir) œuf ÿ"
)


@given(st.one_of(ANY, st.lists(st.sampled_from(WORDS), max_size=25).map(lambda w: " ".join(w).replace(" .", "."))))
def test_skipping_plain_ends_changes_nothing_of_punkt(text):
    quick = module._punkt()
    plain = nltk_module("nltk.tokenize.punkt").PunktSentenceTokenizer(quick._params, lang_vars=quick._lang_vars)
    assert list(quick.span_tokenize(text)) == list(plain.span_tokenize(text))

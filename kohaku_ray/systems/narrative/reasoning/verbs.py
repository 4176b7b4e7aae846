"""Words for what befalls people, by kind of event, as patterns."""

from __future__ import annotations

import re

BE = r"(?:was|were|been|being|is|be|got|had)\s+(?:\w+ly\s+|then\s+|at\s+once\s+|once\s+more\s+|again\s+)?"
_PRISON = r"(?:prison|jail|gaol|a\s+dungeon|the\s+dungeons?|a\s+cell|irons|captivity|chains)"
_BY = r"(?=\s+(?:over\s+|back\s+|again\s+|home\s+|out\s+|ashore\s+)?(?:to|for|into|in|at|from|across|through)\b)"

PASSIVE = {
    "imprisoned": r"(?:re-?)?(?:arrested|imprisoned|incarcerated|jailed)|locked\s+up|taken\s+prisoner|"
    rf"(?:thrown|cast|put|flung)\s+(?:\w+\s+)?into\s+{_PRISON}|(?:sent|committed|condemned)\s+to\s+{_PRISON}",
    "freed": r"freed|released|liberated|pardoned|set\s+free|set\s+at\s+liberty",
    "died": r"killed|murdered|executed|guillotined|hanged|shot\s+dead|slain|beheaded|assassinated|drowned",
    "born": r"born",
    "married": r"married|wedded|wed",
}
"""Participles that need an auxiliary, a comma or a coordinated auxiliary before them."""

ACTIVE = {
    "imprisoned": rf"(?:languished|rotted|pined)\s+in\s+(?:{_PRISON}|the)|entered\s+{_PRISON}",
    "freed": r"escaped(?=\s*[.,;]|\s+(?:from|in|to|with|after|by|and|at)\b)|"
    rf"(?:broke\s+out\s+of|left)\s+{_PRISON}|(?:regained|recovered)\s+(?:his|her)\s+(?:liberty|freedom)",
    "died": r"died|perished|expired|passed\s+away|drowned|breathed\s+(?:his|her)\s+last|succumbed|was\s+dead",
    "born": r"came\s+into\s+the\s+world|saw\s+the\s+light\s+of\s+day",
    "married": r"married|wedded",
    "travelled": r"(?:travell?ed|sailed|journeyed|voyaged|emigrated|embarked|fled|crossed|wandered|returned|went|came|"
    rf"moved|set\s+(?:out|sail|off)|left|arrived|landed|rode|walked){_BY}|(?:visited|toured|explored|reached)",
    "stayed": r"(?:lived|dwelt|resided|settled|stayed|remained|worked|served|studied|taught|"
    r"spent\s+(?:the|that|a|his|her)\s+(?:\w+\s+)?(?:year|winter|summer|spring|autumn|months?))"
    r"(?=\s+(?:\w+\s+){0,2}?(?:in|at|on|near)\b)",
    "acted": r"said|replied|cried|answered|asked|exclaimed|smiled|nodded|bowed|rose|entered|walked|turned|wrote|"
    r"embraced|kissed|laughed|wept|signed|took|gave|seized|looked|opened|sat|ran|drank|ate|spoke",
}
"""Verbs whose subject is the person."""

TRANSITIVE = {
    "imprisoned": r"(?:re-?)?(?:arrested|imprisoned|jailed|captured)",
    "freed": r"freed|released|liberated|pardoned",
    "died": r"killed|murdered|executed|hanged|shot\s+dead|assassinated|slew",
    "married": r"married|wedded",
}
"""Verbs whose object is the person."""

TRIGGER = re.compile(
    r"\b(?:"
    + "|".join(
        [rf"{BE}(?:{'|'.join(f'(?P<passive_{kind}>{words})' for kind, words in PASSIVE.items())})"]
        + [rf"(?P<active_{kind}>{words})" for kind, words in ACTIVE.items()]
        + [rf"(?P<bare_{kind}>{words})" for kind, words in PASSIVE.items() if kind != "married"]
    )
    + r")\b",
    re.IGNORECASE,
)
"""A verb; its group is the voice (passive, active, bare: no auxiliary) and the kind."""

OBJECT_TRIGGER = re.compile(
    rf"\b(?:{'|'.join(f'(?P<{kind}>{words})' for kind, words in TRANSITIVE.items())})\b", re.IGNORECASE
)

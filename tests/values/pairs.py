"""Pairs of answer values that are one answer, or two, each group with its reason and the question's unit.

Written for this test; what recorded runs of WattBot spell differently was the starting point.
"""

from __future__ import annotations

Pairs = list[tuple[str, str | None, list[tuple[str, str]]]]

EQUAL: Pairs = [
    (
        "a hedge or a bound says how sure the number is, not another number",
        None,
        [
            ("4.3", "~4.3"), ("4.3", "≈4.3"), ("4.3", "≈ 4.3"), ("4.3", "about 4.3"), ("4.3", "About 4.3"),
            ("4.3", "approximately 4.3"), ("4.3", "approx. 4.3"), ("40", "over 40"), ("40", "more than 40"),
            ("40", "Less than 40"), ("40", "< 40"), ("40", ">40"), ("40", "≤40"), ("40", ">= 40"), ("40", "at least 40"),
            ("40", "at most 40"), ("40", "up to 40"), ("40", "nearly 40"), ("40", "almost 40"), ("40", "around 40"),
            ("40", "roughly 40"), ("40", "40+"), ("40", "40 or more"), ("40", "as much as 40"), ("40", "as many as 40"),
            ("40", "no more than 40"), ("40", "just over 40"), ("40", "just under 40"), ("40", "close to 40"),
            ("40", "an estimated 40"), ("40", "ca. 40"), ("40", "circa 40"), ("40", "some 40"), ("40", "fewer than 40"),
            ("40", "in excess of 40"), ("40", "well above 40"), ("13", "13 ± 2"), ("40", "about ~40"),
        ],
    ),
    (
        "a power of ten in every spelling",
        None,
        [
            ("120000", "1.2 × 10^5"), ("120000", "1.2×10⁵"), ("120000", "1.2 x 10^5"), ("120000", "1.2*10^5"),
            ("120000", "1.2 * 10**5"), ("120000", "1.2e5"), ("120000", "1.2E+05"), ("120000", "1.2·10⁵"),
            ("120000", "1.2 ⋅ 10^5"), ("120000", "1.2 \\times 10^{5}"), ("120000", "$1.2 \\times 10^5$"),
            ("120000", "1.2×10<sup>5</sup>"), ("120000", "~1.2 × 10⁵"), ("100000", "10^5"), ("100000", "10⁵"),
            ("100000", "10**5"), ("100000", "×10^5"), ("100000", "1e5"), ("0.001", "10^-3"), ("0.001", "10⁻³"),
            ("0.0012", "1.2 × 10^-3"), ("0.0012", "1.2×10⁻³"), ("0.0012", "1.2 × 10^(−3)"), ("1024", "2^10"),
            ("1024", "2¹⁰"),
        ],
    ),
    (
        "thousands, millions, billions and trillions, as letters and as words",
        None,
        [
            ("2500", "2.5k"), ("2500", "2.5K"), ("2500", "2.5 k"), ("2500000", "2.5M"), ("2500000", "2.5 million"),
            ("2500000", "2.5 Million"), ("2500000", "2.5 mln"), ("2500000", "2.5 mn"), ("5e9", "5B"), ("5e9", "5 bn"),
            ("5e9", "5bn"), ("5e9", "5 billion"), ("5e9", "5 b"), ("5e12", "5 trillion"), ("5e12", "5T"),
            ("5000", "5 thousand"), ("5000", "five thousand"), ("300000", "3 lakh"), ("30000000", "3 crore"),
            ("500000", "half a million"), ("1000000", "a million"), ("2e8", "2 hundred million"), ("1.5e8", "1.5億"),
        ],
    ),
    ("the unit says what a letter counts", "parameters", [("5e9", "5B"), ("7B", "7 billion"), ("5m", "5 million"), ("5B parameters", "5B"), ("175 B", "175000000000")]),
    ("asked in bytes, B is a byte", "bytes", [("5B", "5"), ("5 B", "5 bytes"), ("5 kB", "5000")]),
    ("asked in metres, m is a metre", "m", [("5m", "5"), ("5 m", "500 cm")]),
    ("digits are parted into groups in many ways", None, [("1234567", "1,234,567"), ("1234567", "1 234 567"), ("1234567", "1'234'567"), ("1234567", "1’234’567"), ("1234567", "1.234.567"), ("100000", "1,00,000"), ("1234567.5", "1,234,567.5"), ("1234.5", "1.234,5"), ("1234567.5", "1 234 567,5")]),
    ("a comma is a decimal mark where the unit asked for is a measure", "percent", [("12.5", "12,5"), ("12.5", "12,5 %"), ("12.5", "12,50 Prozent"), ("1.234", "1,234 Prozent"), ("53", "53 pour cent")]),
    ("a comma before a known unit is a decimal mark", None, [("12.5 kg", "12,5 kg"), ("0.053 kg", "0,053 kg"), ("1.5 kWh", "1,5 kWh"), ("3.5 million", "3,5 Millionen"), ("€5.6 million", "5,6 Mio. €")]),
    ("a percentage of a question in percent", "percent", [("53", "53%"), ("53", "53 %"), ("53", "53 percent"), ("53", "53 per cent"), ("53", "~53%"), ("53", "５３％"), ("20", "1 in 5"), ("20", "one in five"), ("50", "half"), ("75", "three quarters"), ("75", "3/4"), ("75", "3 out of 4"), ("25", "a quarter"), ("0.5", "0.5%"), ("5", "50‰"), ("28.5", "28.50%"), ("4", "About 4 percent"), ("45", "Up to 45%")]),
    ("a share of a question asked as a fraction", "fraction", [("0.53", "53%"), ("0.53", ".53"), ("0.5", "half"), ("0.5", "50 percent"), ("0.25", "1/4"), ("0.2", "1 in 5")]),
    ("small numbers in words", None, [("0", "zero"), ("3", "three"), ("12", "twelve"), ("12", "a dozen"), ("25", "twenty-five"), ("25", "twenty five"), ("100", "one hundred"), ("105", "one hundred and five"), ("3", "Three."), ("2.5", "two and a half"), ("7", "about seven")]),
    ("fractions", None, [("0.5", "1/2"), ("0.5", "½"), ("1.5", "1½"), ("1.5", "1 1/2"), ("0.75", "¾"), ("0.25", "1⁄4"), ("0.5", "one half"), ("0.666667", "two thirds"), ("0.125", "⅛"), ("[0.02,0.1]", "1/50 to 1/10")]),
    ("digits of other scripts", None, [("53", "５３"), ("53", "٥٣"), ("53", "५३"), ("53", "৫৩"), ("5.3", "٥٫٣"), ("1234", "١٬٢٣٤"), ("2024", "２０２４")]),
    ("dollars in their spellings", "USD", [("5", "$5"), ("5", "5 dollars"), ("5", "US$5"), ("5", "USD 5"), ("5", "5 USD"), ("5600000000", "$5.6 billion"), ("2500000", "$2.5M"), ("0.05", "5 cents"), ("-5", "-$5"), ("5.5", "$5.50"), ("1234.5", "$1,234.50")]),
    ("a rate in dollars", "USD per hour", [("7.52", "$7.52 per hour"), ("7.52", "$7.52/hr"), ("7.52", "7.52 USD/h"), ("4.63", "$4.63 per hour")]),
    ("euros, pounds and yen", None, [("€5", "5 euros"), ("€5", "EUR 5"), ("€5", "5 €"), ("£5", "GBP 5"), ("¥500", "500 yen"), ("￥500", "¥500"), ("₹5", "INR 5"), ("€1.5 million", "€1,500,000")]),
    ("a multiple in its spellings", "multiplier", [("40", "Over 40 times"), ("40", "40x"), ("40", "40×"), ("40", "40-fold"), ("2", "double"), ("2", "twice"), ("2", "a factor of 2"), ("3", "triple"), ("10", "tenfold"), ("6.7", "6.7x"), ("12.1", "About 12.1x"), ("10", "x10"), ("2", "Twofold")]),
    ("a magnitude in the unit asked for", "million gallons per day", [("3", "3 million gallons per day"), ("3", "3 million"), ("3", "3,000,000 gallons per day"), ("3", "Up to 3 million gallons per day"), ("3", "three million gallons per day")]),
    ("a magnitude in the unit asked for, in another unit of volume", "billion liters", [("21.2", "21.2 billion liters"), ("21.2", "21,200 million liters"), ("21.2", "21.2 billion litres"), ("21.2", "21200 ML")]),
    ("the unit asked for, before or after the number, with its adjectives or without", "H100 GPUs", [("96", "96 H100 GPUs"), ("96", "96 GPUs"), ("96", "96 H100 GPU")]),
    ("the quantity asked for stands before the number", "PUE", [("1.58", "PUE 1.58"), ("1.58", "PUE of 1.58"), ("1.58", "PUE: 1.58")]),
    ("a hyphen between number and unit", "bits", [("4", "4-bit"), ("4", "4 bits"), ("4", "4-bits")]),
    ("units of one quantity are converted", None, [("2.5 kWh", "2500 Wh"), ("1 day", "24 hours"), ("4.3 tCO2e", "4300 kg"), ("4.3 tCO₂e", "4.3 t"), ("5 m²", "5 m2"), ("5 m²", "5 m^2"), ("5 sq m", "5 square meters"), ("1 m³", "1000 L"), ("1 gallon", "3.785 L"), ("300 W", "0.3 kW"), ("80 GB", "80,000 MB")]),
    ("a span in its spellings", None, [("[80,90]", "80-90"), ("[80,90]", "80–90"), ("[80,90]", "80‐90"), ("[80,90]", "80‒90"), ("[80,90]", "80―90"), ("[80,90]", "80－90"), ("[80,90]", "80−90"), ("[80,90]", "80 to 90"), ("[80,90]", "between 80 and 90"), ("[80,90]", "from 80 to 90"), ("[80,90]", "[ 80, 90 ]"), ("[80,90]", "[90,80]"), ("[80,90]", "about 80 to 90"), ("[80,90]", "80~90"), ("[80,90]", "80〜90"), ("[-5,-3]", "-5--3"), ("[-5,3]", "-5 to 3"), ("[1000,2000]", "1,000–2,000"), ("[1000,2000]", "[1,000, 2,000]"), ("[4,8]", "four to eight"), ("[5e6,1e7]", "5 to 10 million"), ("[5e6,1e7]", "5-10M"), ("[80,90]", "(80, 90)"), ("[80,90]", "90 to 80")]),
    ("a span with the unit asked for", "percent", [("[6.7,12]", "6.7% to 12.0%"), ("[6.7,12]", "6.7–12%"), ("[6.7,12]", "(6.7,12.0)"), ("[6.7,12]", "6.7 percent to 12 percent"), ("[6.7,12]", "[6.7, 12] %")]),
    ("look-alike signs, dashes and spaces", None, [("-5", "−5"), ("-5", "－5"), ("-5", "–5"), ("1234", "1\u2007234"), ("1234", "1\u202f234"), ("12", "1\u200b2"), ("12", "\ufeff12"), ("12", "12\u00a0"), ("12 kg", "12\u00a0kg"), ("80-90", "80\u201190"), ("GPT-4", "GPT‑4"), ("GPT-4", "GPT–4"), ("ＧＰＴ-4", "GPT-4")]),
    ("true and false", None, [("1", "true"), ("1", "TRUE"), ("1", "True."), ("1", "yes"), ("1", "Yes"), ("0", "false"), ("0", "No"), ("yes", "true"), ("0", "FALSE"), ("1.0", "True")]),
    ("lists have no order", None, [("(GPT-4, Claude)", "(Claude, GPT-4)"), ("['b', 'a']", '["a", "b"]'), ("{a, b}", "{b, a, a}"), ("[a, b]", "(b, a)"), ("(1, 2, 3)", "[3, 2, 1]"), ("(30,50)", "(50, 30)"), ("(Prefill, the decode)", "(decode, prefill)"), ("(1.65, 0.5)", "(0.5, ~1.65)"), ("(a; b)", "(b, a)")]),
    ("brackets around a single item are no list", None, [("(GPT-4)", "GPT-4"), ("[5]", "5"), ("('idle',)", "idle"), ("(5)", "5"), ("{a, a}", "a")]),
    ("texts without case, articles, end punctuation, quotes", None, [("prefill", "Prefill."), ("prefill", "the prefill"), ("watershed", "The watershed"), ("watershed", "a watershed"), ("idle", '"idle"'), ("idle", "“Idle”"), ("idle", "IDLE!"), ("net zero", "Net Zero;"), ("state of art", "state of the art"), ("ML.ENERGY Benchmark", "The ML.ENERGY Benchmark")]),
    ("texts without hyphens and spaces", None, [("pre-fill", "prefill"), ("general-purpose technologies", "General purpose technologies"), ("A100-80GB", "A100 80GB"), ("GPT 4", "GPT-4"), ("DeepSeek R1", "DeepSeek-R1"), ("Burst-GPT", "BurstGPT"), ("net-zero", "net zero"), ("water  consumption", "Water\u00a0consumption"), ("V100_32GB", "V100 32GB"), ("co\u00adoling", "cooling")]),
    ("numbers within 0.1 %", None, [("1000", "1001"), ("1000", "999.5"), ("4.3", "4.30"), ("13812", "13812.4"), ("13", "13."), ("5", "+5"), ("[80,90]", "[80.05,90.05]")]),
]

DIFFERENT: Pairs = [
    ("other numbers", None, [("4.3", "5"), ("4.3", "~5"), ("1000", "1001.1"), ("5", "-5"), ("1.2e5", "1.2e6"), ("10^5", "105"), ("10⁵", "10^6"), ("1½", "11/2"), ("½", "12"), ("three", "13"), ("0.5", "5"), ("2.5k", "2.5M"), ("1,234", "1.234"), ("0", "1e-30")]),
    ("a range is no number", None, [("80-90", "80"), ("[80,90]", "85"), ("[80,90]", "[80,91]"), ("(30,50)", "30"), ("5--3", "[-3,5]"), ("[80,90]", "8090")]),
    ("without a unit, a percentage is not a bare number", None, [("53%", "53"), ("53%", "0.53"), ("1 in 5", "0.2")]),
    ("half a percent is not a half", "percent", [("0.5", "50"), ("0.5%", "half"), ("0.53", "53%"), ("5", "5‰")]),
    ("units of other quantities", None, [("5 kW", "5 kWh"), ("5", "5 kWh"), ("5 GB", "5 GiB"), ("5 m2", "5 m"), ("5 m²", "5 m³"), ("5 L/kWh", "5 L"), ("5 tons", "5 tonnes"), ("5 days", "5 hours")]),
    ("case tells milli from mega", "MW", [("5 mW", "5 MW")]),
    ("currencies are not one", None, [("$5", "€5"), ("£5", "$5"), ("5 yen", "5 yuan"), ("$5", "$5 per hour"), ("A$5", "$5"), ("$5", "5%")]),
    ("bytes are not billions", "bytes", [("5B", "5 billion"), ("5 B", "5e9")]),
    ("billions are not bytes", "parameters", [("5B", "5"), ("7B", "7"), ("7B", "70B")]),
    ("the magnitude in the unit counts once", "million gallons per day", [("3", "3000000"), ("3", "3 gallons per day"), ("3", "3 billion gallons per day")]),
    ("digits keep their borders", None, [("Llama 3 8B", "Llama 38B"), ("Qwen2-5", "Qwen25"), ("1 2", "12"), ("5-3-7", "537"), ("2024-01-15", "20240115")]),
    ("other texts", None, [("GPT-3", "GPT-4"), ("training", "prefill"), ("A100", "H100"), ("A100-80GB", "A100-40GB"), ("C", "C++"), ("C", "C#"), ("A+", "A-"), ("A", "B"), ("x", "y"), ("plan A", "plan B"), ("thesis", "the sis ter")]),
    ("a unit that is not known keeps the number a text", None, [("5 apples", "5"), ("5 apples", "5 pears"), ("GPT-3", "3"), ("A100-80GB", "100-80")]),
    ("other lists", None, [("(GPT-4, Claude)", "(GPT-4, Llama)"), ("(GPT-4, Claude)", "(GPT-4)"), ("(1, 2, 3)", "(1, 2)"), ("(1, 2, 3)", "(1, 2, 4)"), ("(a, a, b)", "(a, b, b)"), ("(GPT-4, Claude)", "GPT-4")]),
    ("true is not false", None, [("1", "false"), ("true", "no"), ("yes", "0"), ("yes", "yes, but"), ("no", "nobody")]),
    ("a yes is no amount of energy", "kWh", [("1", "yes"), ("0", "false")]),
    ("a comma between numbers without a measure is no decimal mark", None, [("13,81", "13.81"), ("28, 35", "28.35"), ("1,2,3", "123")]),
    ("a date is neither a range nor a fraction", None, [("1/2/2024", "0.5"), ("2023/24", "2024/24"), ("9/11/2001", "9/11")]),
]

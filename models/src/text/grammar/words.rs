//! What the grammar library says, in words for whoever wrote the grammar.

/// Characters of a message at most: some of the library's hold the whole grammar.
const MOST_CHARACTERS: usize = 400;

/// What a message of the library begins with, or has in it, and what is said instead.
const PLAIN: [(&[&str], &str); 9] = [
    (
        &["Failed to generate regex for"],
        "the bounds of a number are too far apart, or beyond 64 bits, to be written as a pattern; leave them out, or take smaller ones",
    ),
    (
        &["Current row has", "ParserTooComplex", "max items", "too many items"],
        "it is too ambiguous: there are too many ways to read what was written so far; leave out alternatives that mean the same, \
         repetitions of what may be empty, and let rules refer to themselves on their left (`list: list item | item`)",
    ),
    (
        &[
            "too many expressions",
            "too many states",
            "LexerTooComplex",
            "fuel exhausted",
            "initial_lexer_fuel",
            "initial lexer configuration",
            "DNF too large",
            "Unable to determine if regex is empty",
        ],
        "its patterns are too complex; use fewer and smaller ones, with smaller counts of repetition",
    ),
    (&["NoExtension"], "it leads to a place where it allows no token of this model"),
    (
        &["grammar size (number of symbols) too big", "schema too large"],
        "it is too large; leave out what is not needed",
    ),
    (&["coerce_one_of"], "`oneOf` is taken only where no two of its schemas allow the same; use `anyOf`"),
    (
        &["referencing' feature"],
        "only references within the schema are followed: `#/$defs/name`, for instance",
    ),
    (
        &["operation cancelled", "Cancelled"],
        "it was not followed to its end, since nobody waits for it any more",
    ),
    (&["panic: ", "InternalError"], "it cannot be followed; write it in another way"),
];

/// A message of the library for whoever wrote the grammar: without its internals, and not too long.
pub(super) fn in_plain_words(message: &str) -> String {
    let known = |(marks, _): &&(&[&str], &str)| marks.iter().any(|mark| message.contains(mark));
    if let Some((_, plain)) = PLAIN.iter().find(known) {
        return (*plain).to_owned();
    }
    // The library quotes lines of the grammar it compiled, which nobody may have written.
    let quoted =
        |line: &&str| line.split_once(" | ").is_some_and(|(number, _)| number.trim().parse::<u32>().is_ok());
    let lines = message.split("\n<").next().unwrap_or_default().lines().take_while(|line| !quoted(line));
    let text = lines.collect::<Vec<_>>().join("\n");
    // Nor has anybody written the line and column of what a schema became.
    let text = match text.split_once("failed to compile JSON schema: ") {
        Some((_, why)) => why.trim(),
        None => text.trim(),
    };
    if let Some(keys) = text.strip_prefix("Unimplemented keys: ") {
        return format!("these keywords of JSON Schema are not followed: {keys}; leave them out");
    }
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_internals_are_told() {
        for (message, words) in [
            ("NoExtensionBias\n<non-verbose/>", "no token"),
            ("Parser Error: Current row has 2100 items; max is 2000; consider", "ambiguous"),
            ("lexer error: too many states: 20000 >= 20000\n<non-verbose/>", "patterns"),
            (
                "panic: index out of bounds\n<backtrace>\n 0: std::rt\n</backtrace>\n<non-verbose/>",
                "another way",
            ),
            ("unknown name: \"foo\"\n<non-verbose/>", "unknown name: \"foo\""),
        ] {
            let plain = in_plain_words(message);
            assert!(plain.contains(words), "{plain}");
            for internal in ["<", "Bias", "panic", "Current row", "max is"] {
                assert!(!plain.contains(internal), "{plain}");
            }
        }
        assert!(in_plain_words(&"é".repeat(5000)).chars().count() <= MOST_CHARACTERS + 1);
    }
}

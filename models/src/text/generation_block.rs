//! The block `{% generation %}` of transformers, which marks what an assistant says. It writes its body, in a scope of its own: so does
//! `{% with %}`, which stands in its place here.

/// The source with every such block replaced.
pub(super) fn replaced(source: &str) -> String {
    if !source.contains("generation") {
        return source.to_owned();
    }
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        let length = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map_or(tag.len(), |end| end + 2),
            Some(b'%') => end_of_tag(tag, "%}"),
            Some(b'{') => end_of_tag(tag, "}}"),
            _ => 1,
        };
        let length = if word(&tag[..length]) == Some("raw") { end_of_raw(tag, length) } else { length };
        let (tag, after) = tag.split_at(length);
        out.push_str(before);
        out.push_str(&block(tag).unwrap_or_else(|| tag.to_owned()));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Bytes of a tag up to its end, wherever strings in it seem to end it.
fn end_of_tag(tag: &str, end: &str) -> usize {
    let mut quote = None;
    let mut characters = tag.char_indices().skip(2);
    while let Some((at, c)) = characters.next() {
        match quote {
            Some(_) if c == '\\' => drop(characters.next()),
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if tag[at..].starts_with(end) => return at + end.len(),
            None => {}
        }
    }
    tag.len()
}

/// Bytes from the start of a raw block to the start of its end.
fn end_of_raw(block: &str, tag: usize) -> usize {
    let mut ends = block[tag..].match_indices("{%").map(|(at, _)| tag + at);
    let ended = ends.find(|at| word(&block[*at..*at + end_of_tag(&block[*at..], "%}")]) == Some("endraw"));
    ended.unwrap_or(block.len())
}

/// All that stands in a tag of a block.
fn word(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    Some(inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+'))
}

/// What stands in the place of a tag, if it begins or ends such a block.
fn block(tag: &str) -> Option<String> {
    let word = word(tag)?;
    let other = match word {
        "generation" => "with",
        "endgeneration" => "endwith",
        _ => return None,
    };
    let (before, after) = tag.split_once(word)?;
    Some(format!("{before}{other}{after}"))
}

#[cfg(test)]
mod tests {
    use super::replaced;

    #[test]
    fn blocks_are_replaced_and_nothing_else() {
        for (source, wanted) in [
            ("a{% generation %}b{%- endgeneration -%}c", "a{% with %}b{%- endwith -%}c"),
            ("{%generation%}{ {%+ endgeneration %}", "{%with%}{ {%+ endwith %}"),
            ("{# {% generation %} #}", "{# {% generation %} #}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{{ '\\'}}{% generation %}' }}", "{{ '\\'}}{% generation %}' }}"),
            ("{% if generation %}é{% endif %}{", "{% if generation %}é{% endif %}{"),
            (
                "{%- raw %}{% generation %}{{ {%- endraw %}{% generation %}",
                "{%- raw %}{% generation %}{{ {%- endraw %}{% with %}",
            ),
            ("{% raw %}{% generation %}", "{% raw %}{% generation %}"),
            ("{% generation x %}", "{% generation x %}"),
            ("{% generation", "{% generation"),
        ] {
            assert_eq!(replaced(source), wanted);
        }
    }
}

//! Rust source with its comments and literals blanked out, so that a scan sees code alone.

/// `source` with every comment and every text, byte and character literal replaced by spaces; line breaks stay.
pub fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < bytes.len() {
        let length = skip(bytes, at);
        if length == 0 {
            code.push(if bytes[at].is_ascii() { char::from(bytes[at]) } else { ' ' });
            at += 1;
        } else {
            let blanked = bytes[at..(at + length).min(bytes.len())].iter();
            code.extend(blanked.map(|&byte| if byte == b'\n' { '\n' } else { ' ' }));
            at += length;
        }
    }
    code
}

/// Length of the comment or literal that starts at `at`; 0 if none does.
fn skip(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let starts_word = at == 0 || !is_word(bytes[at - 1]);
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => quoted(rest, b'"'),
        [b'\'', b'\\', ..] => quoted(rest, b'\''),
        // A character ends with a quote after one character; a lifetime does not.
        [b'\'', ..] => {
            let width = std::str::from_utf8(&rest[1..])
                .ok()
                .and_then(|text| text.chars().next())
                .map_or(1, char::len_utf8);
            if rest.get(1 + width) == Some(&b'\'') { width + 2 } else { 0 }
        }
        [b'r', ..] if starts_word => raw(rest, 1),
        [b'b' | b'c', b'r', ..] if starts_word => raw(rest, 2),
        _ => 0,
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Block comments nest.
fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at + 1 < rest.len() {
        match &rest[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// `r"..."`, `r#"..."#` and so on after a prefix of `prefix` bytes; 0 when it is a name instead.
fn raw(rest: &[u8], prefix: usize) -> usize {
    let hashes = rest[prefix..].iter().take_while(|&&byte| byte == b'#').count();
    if rest.get(prefix + hashes) != Some(&b'"') {
        return 0;
    }
    let end: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let open = prefix + hashes + 1;
    let length = rest[open..].windows(end.len()).position(|window| window == end);
    length.map_or(rest.len(), |length| open + length + end.len())
}

/// Whether `word` stands in `code` with no letter, digit or underscore beside it.
pub fn has_word(code: &str, word: &str) -> bool {
    let bytes = code.as_bytes();
    code.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).is_some_and(|before| is_word(bytes[before]));
        let after = bytes.get(at + word.len()).is_some_and(|&byte| is_word(byte));
        !before && !after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_go_and_code_stays() {
        for hidden in [
            "// unsafe",
            "/* a /* unsafe */ unsafe */",
            "\"unsafe \\\" unsafe\"",
            "r#\"unsafe \" unsafe\"#",
            "br\"unsafe\"",
            "'\\''; \"unsafe\"",
            "'\"'; // unsafe",
            "'é'; \"unsafe\"",
        ] {
            let source = format!("before {hidden}\nafter");
            let code = code_only(&source);
            assert!(!has_word(&code, "unsafe"), "{source:?} became {code:?}");
            assert!(has_word(&code, "before") && has_word(&code, "after"), "{source:?} became {code:?}");
        }
        for seen in
            ["unsafe { x }", "&'a str, unsafe {", "for\"\"; unsafe", "r#unsafe; unsafe", "'{'; unsafe"]
        {
            assert!(has_word(&code_only(seen), "unsafe"), "{seen:?} became {:?}", code_only(seen));
        }
    }

    #[test]
    fn words_have_borders() {
        assert!(has_word("(unsafe)", "unsafe"));
        assert!(!has_word("unsafe_op_in_unsafe_fn", "unsafe"));
    }
}

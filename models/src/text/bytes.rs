//! Tokens that stand for bytes: the printable alphabet of byte-level BPE, and `<0xE2>` tokens.

/// The bytes of a byte-level BPE token, in which each byte is written as one printable character (GPT-2's
/// alphabet). A token with other characters in it (one added by hand) stands for itself.
pub(super) fn of_byte_level_token(token: &str) -> Vec<u8> {
    token.chars().map(byte_of_char).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

/// Printable Latin-1 bytes are written as themselves, the 68 others, in order, as the characters from U+0100 on.
fn byte_of_char(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(), // 0x00 to 0x20
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(), // 0x7f to 0xa0
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The byte of a token such as `<0xE2>`, the way SentencePiece falls back to bytes.
pub(super) fn of_fallback_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_one_character_for_each_byte() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of_char).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(of_byte_level_token("Ġhello"), b" hello");
        assert_eq!(of_byte_level_token("Ċ"), b"\n");
    }

    #[test]
    fn a_token_outside_of_the_alphabet_stands_for_itself() {
        assert_eq!(of_byte_level_token("<é é>"), "<é é>".as_bytes());
    }

    #[test]
    fn fallback_bytes_are_recognised() {
        assert_eq!(of_fallback_token("<0xE2>"), Some(0xe2));
        for other in ["<0xE>", "<0xE2", "0xE2", "<0xZZ>", "<0xE22>"] {
            assert_eq!(of_fallback_token(other), None, "{other}");
        }
    }
}

//! Text of a token stream, piece by piece: what it has shown is always a prefix of [`Tokenizer::decode`] of all
//! tokens so far and to come; behind a prompt, of what that shows beyond the prompt's own text.
//!
//! Three kinds of token: some are bytes wherever they stand (byte-level BPE, synthetic models), then only an
//! unfinished UTF-8 character is held back. With others the text depends on the neighbours (SentencePiece: a
//! space in front, runs of `<0xE2>` bytes): these are decoded together with the last shown ones as context, and
//! a run of byte tokens is held back until it ends.

use std::sync::Arc;

use super::tokenizer::{Piece, Tokenizer};

/// Tokens of a prompt at most among which one is looked for that is text.
const MOST_CONTEXT: usize = 64;

/// The state of one stream.
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// Bytes of a character that is not complete.
    partial: Vec<u8>,
    /// Tokens shown last, then tokens not shown.
    window: Vec<u32>,
    /// How many of `window` are shown.
    shown: usize,
    /// Special tokens that are shown by their names.
    marks: Vec<u32>,
}

impl Detokenizer {
    /// A stream without tokens.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Detokenizer {
        Detokenizer { tokenizer, partial: Vec::new(), window: Vec::new(), shown: 0, marks: Vec::new() }
    }

    /// The same, but special tokens among these are shown by their names: then the text is [`Tokenizer::decode`] of what stands between them.
    #[must_use]
    pub fn showing(self, marks: Vec<u32>) -> Detokenizer {
        Detokenizer { marks, ..self }
    }

    /// The same behind a prompt, which is shown already: what its first token shows depends on whether there is text before it.
    #[must_use]
    pub fn behind(mut self, prompt: &[u32]) -> Detokenizer {
        let recent = &prompt[prompt.len().saturating_sub(MOST_CONTEXT)..];
        let mut window = Vec::new();
        // The last tokens that are text by themselves, or all, if none is. A character that is not complete shows nothing yet.
        for &id in recent.iter().rev() {
            match self.tokenizer.piece(id) {
                Piece::Nothing => continue,
                Piece::Bytes(_) => break,
                Piece::FallbackByte | Piece::Contextual => window.insert(0, id),
            }
            let text = self.tokenizer.decode(&window);
            if text.is_empty() || text.starts_with(char::REPLACEMENT_CHARACTER) {
                continue;
            }
            if !text.ends_with(char::REPLACEMENT_CHARACTER) {
                break;
            }
            window.clear();
        }
        if !self.tokenizer.decode(&window).starts_with(char::REPLACEMENT_CHARACTER) {
            (self.shown, self.window) = (window.len(), window);
        }
        self
    }

    /// A stream of the same tokenizer without tokens.
    #[must_use]
    pub fn again(&self) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.tokenizer))
    }

    /// Takes the next token; returns text that is ready to be shown, if there is any.
    pub fn push(&mut self, id: u32) -> Option<String> {
        let text = match self.tokenizer.piece(id) {
            Piece::Nothing if self.marks.contains(&id) => {
                let before = self.finish();
                before + &String::from_utf8_lossy(&self.tokenizer.token_bytes(id))
            }
            Piece::Nothing => String::new(),
            Piece::Bytes(bytes) => self.push_bytes(&bytes),
            Piece::FallbackByte => {
                self.part_from_bytes();
                self.window.push(id);
                String::new()
            }
            Piece::Contextual => {
                self.window.push(id);
                self.show_window()
            }
        };
        Some(text).filter(|text| !text.is_empty())
    }

    /// The rest, when no token follows: what was held back, with U+FFFD for what is not UTF-8.
    pub fn finish(&mut self) -> String {
        let mut text = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
        text.push_str(&self.show_window());
        text
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.partial.extend_from_slice(bytes);
        let mut text = String::new();
        let mut done = 0;
        while done < self.partial.len() {
            let rest = &self.partial[done..];
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    done = self.partial.len();
                }
                Err(error) => {
                    text.push_str(&String::from_utf8_lossy(&rest[..error.valid_up_to()]));
                    done += error.valid_up_to();
                    // No length: the bytes may still become a character.
                    let Some(wrong) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    done += wrong;
                }
            }
        }
        self.partial.drain(..done);
        text
    }

    /// Bytes that are shown are no part of a run that goes on: it could be shown otherwise as a whole.
    fn part_from_bytes(&mut self) {
        while self.shown == self.window.len()
            && let Some(&last) = self.window.last()
            && matches!(self.tokenizer.piece(last), Piece::FallbackByte)
        {
            self.window.pop();
            self.shown -= 1;
        }
    }

    fn show_window(&mut self) -> String {
        let before = self.tokenizer.decode(&self.window[..self.shown]);
        let after = self.tokenizer.decode(&self.window);
        let text = after.get(before.len()..).unwrap_or_default().to_owned();
        // A context that shows nothing would be taken for the start of the text, where a space is dropped.
        if !text.is_empty() {
            self.window.drain(..self.shown);
        }
        self.shown = self.window.len();
        text
    }
}

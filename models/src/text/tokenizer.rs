//! Text to token ids and back: a model directory's `tokenizer.json`, what a GGUF file has of one, or plain bytes for synthetic models.

use std::path::Path;

use tokenizers::{DecoderWrapper, ModelWrapper};

use super::bytes;
use super::catch_panic::catch_panic;
use super::gguf_text::tokenizer_json;
use super::long::{Encoded, Long, is_long};
use super::tokenizer_files::{Made, as_transformers};
use crate::checkpoint::{check_pointer, why_not};
use crate::gguf::{Gguf, Metadata, Parts, is_gguf};
use crate::{ModelConfig, ModelError};

/// Words that each thread keeps the tokens of; the longest of them take 8 KiB each.
const WORDS_KEPT: usize = 1024;

/// Turns text into token ids and back. Share it in an `Arc`; streams of tokens go through a [`crate::Detokenizer`].
pub struct Tokenizer {
    kind: Kind,
    vocab: usize,
    left_out: Vec<String>,
}

enum Kind {
    Hf {
        inner: Box<tokenizers::Tokenizer>,
        byte_level: bool,
        long: Box<Long>,
    },
    /// Token ids 0 to 255 are bytes; there is no tokenizer file.
    Synthetic,
}

/// What one token adds to a text.
pub(super) enum Piece {
    /// Nothing: a special token, or an id without a token.
    Nothing,
    /// These bytes, whatever stands around it.
    Bytes(Vec<u8>),
    /// A byte of the `<0xE2>` kind: what it shows depends on the run of such bytes it stands in.
    FallbackByte,
    /// Something that only the whole tokenizer can say.
    Contextual,
}

impl Tokenizer {
    /// Loads `tokenizer.json` of a model directory, as transformers does: with what the files beside it say of added and special tokens, and
    /// what the class of the model's family makes of it. Of a GGUF file it is what its metadata say.
    ///
    /// # Errors
    /// The file is missing or not a tokenizer, or it has token ids that the model (`vocab_size` in
    /// config.json) has not.
    pub fn load(dir: &Path, config: &ModelConfig) -> Result<Tokenizer, ModelError> {
        if is_gguf(dir) {
            return Tokenizer::of_gguf(&Gguf::read(&Parts::map(dir)?)?.metadata, config);
        }
        let path = dir.join("tokenizer.json");
        if !path.exists()
            && let Some(why) = why_not(dir)
        {
            return Err(why);
        }
        check_pointer(&path)?;
        let bytes = std::fs::read(&path).map_err(|e| ModelError::read(&path, e))?;
        let mut json = serde_json::from_slice(&bytes).map_err(|e| ModelError::format(&path, &e))?;
        let Made { changed, left_out } = as_transformers(&mut json, dir, config)?;
        let bytes = if changed { json.to_string().into_bytes() } else { bytes };
        drop(json);
        Ok(Tokenizer { left_out, ..Tokenizer::of_model(&bytes, &path, config)? })
    }

    /// Added tokens of the file that are no tokens here, as the model has no rows for them: their text is that of any other.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// That of the metadata of a GGUF file.
    pub(crate) fn of_gguf(metadata: &Metadata<'_>, config: &ModelConfig) -> Result<Tokenizer, ModelError> {
        let json = tokenizer_json(metadata)?;
        Tokenizer::of_model(json.to_string().as_bytes(), metadata.path(), config)
    }

    /// Whether a model's directory, or its GGUF file, has a tokenizer.
    #[must_use]
    pub fn is_in(dir: &Path) -> bool {
        is_gguf(dir) || dir.join("tokenizer.json").is_file()
    }

    /// Reads a `tokenizer.json` whose ids the model has to have.
    fn of_model(bytes: &[u8], path: &Path, config: &ModelConfig) -> Result<Tokenizer, ModelError> {
        let tokenizer = Tokenizer::from_json(bytes, path)?;
        if tokenizer.vocab > config.vocab {
            let problem = format!(
                "has token ids up to {}, but the model's `vocab_size` is {}: tokenizer and weights are not of the same model",
                tokenizer.vocab - 1,
                config.vocab
            );
            return Err(ModelError::format(path, &problem));
        }
        if let Some(id) = tokenizer.encode("", true)?.into_iter().find(|id| *id as usize >= config.vocab) {
            let problem = format!(
                "its post_processor adds the token {id}, but the model's `vocab_size` is {}",
                config.vocab
            );
            return Err(ModelError::format(path, &problem));
        }
        Ok(tokenizer)
    }

    /// Reads a `tokenizer.json`; `path` is named in errors.
    ///
    /// # Errors
    /// It is no tokenizer, or one whose text cannot be streamed.
    pub fn from_json(bytes: &[u8], path: &Path) -> Result<Tokenizer, ModelError> {
        // First as plain JSON: parts of the library panic where it is none.
        let json: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|e| ModelError::format(path, &e))?;
        drop(json);
        let read =
            catch_panic(|| tokenizers::Tokenizer::from_bytes(bytes)).unwrap_or_else(|why| Err(why.into()));
        let mut inner = read.map_err(|e| ModelError::format(path, &e))?;
        // A prompt must never be cut or filled up silently.
        inner.with_truncation(None).map_err(|e| ModelError::format(path, &e))?;
        inner.with_padding(None);
        let Some(highest) = inner.get_vocab(true).into_values().max() else {
            return Err(ModelError::format(path, &"the vocabulary is empty"));
        };
        // What these make of a token depends on the tokens after it, so that no text could be shown before the
        // last one.
        if matches!(inner.get_decoder(), Some(DecoderWrapper::BPE(_) | DecoderWrapper::CTC(_))) {
            let problem = "its decoder (BPEDecoder or CTC) cannot be streamed; convert it to ByteLevel";
            return Err(ModelError::format(path, &problem));
        }
        let byte_level = matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
        if let ModelWrapper::BPE(model) = inner.get_model() {
            let mut model = model.clone();
            model.resize_cache(WORDS_KEPT);
            inner.with_model(model);
        }
        let long = Box::new(Long::of(&inner));
        Ok(Tokenizer {
            kind: Kind::Hf { inner: Box::new(inner), byte_level, long },
            vocab: highest as usize + 1,
            left_out: Vec::new(),
        })
    }

    /// The tokenizer of synthetic models, which have no file: each byte of a text is the token id 0 to 255, and
    /// an id from 256 on is shown as a short word such as `⟨1234⟩ `.
    ///
    /// # Errors
    /// `vocab` is below 256.
    pub fn synthetic(vocab: usize) -> Result<Tokenizer, ModelError> {
        if vocab < 256 {
            let problem = format!("is {vocab}; at least 256 are needed, one for each byte");
            return Err(ModelError::Synthetic { field: "vocab", problem });
        }
        Ok(Tokenizer { kind: Kind::Synthetic, vocab, left_out: Vec::new() })
    }

    /// The token ids of a text; `add_special` lets the tokenizer put its own start token (and the like) around
    /// it. Chat templates write these tokens themselves: encode their output without.
    ///
    /// # Errors
    /// The tokenizer cannot express the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, ModelError> {
        match self.encode_within(text, add_special, usize::MAX)? {
            Encoded::All(ids) => Ok(ids),
            Encoded::TooMany => Err(ModelError::Tokenize("it has too many tokens".to_owned())),
        }
    }

    /// The same of a text that is of no use if it has more tokens than `most`. A long one that has more costs little: it is found out by
    /// the text's length, or by its first part.
    ///
    /// # Errors
    /// The tokenizer cannot express the text.
    pub fn encode_within(&self, text: &str, add_special: bool, most: usize) -> Result<Encoded, ModelError> {
        match &self.kind {
            Kind::Hf { inner, long, .. } => long.encode(inner, text, add_special, most),
            Kind::Synthetic if is_long(text) && text.len() > most => Ok(Encoded::TooMany),
            Kind::Synthetic => Ok(Encoded::All(text.bytes().map(u32::from).collect())),
        }
    }

    /// The first token ids of a text, `most` at most, for what need not be exact: where a long text cannot be cut for sure, some
    /// ids may be others than the whole text has.
    ///
    /// # Errors
    /// The tokenizer cannot express the text.
    pub fn encode_beginning(&self, text: &str, most: usize) -> Result<Vec<u32>, ModelError> {
        match &self.kind {
            Kind::Hf { inner, long, .. } => long.beginning(inner, text, most),
            Kind::Synthetic => Ok(text.bytes().take(most).map(u32::from).collect()),
        }
    }

    /// The text of token ids. Special tokens and ids without a token add nothing; bytes that are not UTF-8
    /// become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.kind {
            // No decoder of the supported kinds can fail; if one does, there is nothing to show.
            Kind::Hf { inner, .. } => catch_panic(|| inner.decode(ids, true))
                .unwrap_or_else(|why| Err(why.into()))
                .unwrap_or_default(),
            Kind::Synthetic => {
                let bytes: Vec<u8> = ids.iter().flat_map(|id| self.synthetic_bytes(*id)).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
        }
    }

    /// Highest token id + 1. The model's own `vocab` may be padded beyond it.
    pub fn vocab_size(&self) -> usize {
        self.vocab
    }

    /// The id of a token by its name, e.g. `</s>`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        match &self.kind {
            Kind::Hf { inner, .. } => inner.token_to_id(token),
            Kind::Synthetic => None,
        }
    }

    /// What a token stands for, by itself: bytes that need not be UTF-8. A special token stands for its name, an id without a token for
    /// nothing.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let (inner, byte_level) = match &self.kind {
            Kind::Synthetic => return self.synthetic_bytes(id),
            Kind::Hf { inner, byte_level, .. } => (inner, *byte_level),
        };
        let Some(token) = inner.id_to_token(id) else { return Vec::new() };
        if inner.get_added_vocabulary().is_special_token(&token) {
            token.into_bytes()
        } else if byte_level {
            bytes::of_byte_level_token(&token)
        } else if let Some(byte) = bytes::of_fallback_token(&token) {
            vec![byte]
        } else {
            // SentencePiece writes spaces in this way.
            token.replace('\u{2581}', " ").into_bytes()
        }
    }

    /// Whether a token is one of the tokenizer's own marks rather than text.
    pub fn is_special(&self, id: u32) -> bool {
        match &self.kind {
            Kind::Synthetic => false,
            Kind::Hf { inner, .. } => inner
                .id_to_token(id)
                .is_some_and(|token| inner.get_added_vocabulary().is_special_token(&token)),
        }
    }

    pub(super) fn piece(&self, id: u32) -> Piece {
        let (inner, byte_level) = match &self.kind {
            Kind::Synthetic => return Piece::Bytes(self.synthetic_bytes(id)),
            Kind::Hf { inner, byte_level, .. } => (inner, *byte_level),
        };
        let Some(token) = inner.id_to_token(id) else { return Piece::Nothing };
        if inner.get_added_vocabulary().is_special_token(&token) {
            Piece::Nothing
        } else if byte_level {
            Piece::Bytes(bytes::of_byte_level_token(&token))
        } else if bytes::of_fallback_token(&token).is_some() {
            Piece::FallbackByte
        } else {
            Piece::Contextual
        }
    }

    fn synthetic_bytes(&self, id: u32) -> Vec<u8> {
        match u8::try_from(id) {
            Ok(byte) => vec![byte],
            Err(_) if (id as usize) < self.vocab => format!("⟨{id}⟩ ").into_bytes(),
            Err(_) => Vec::new(),
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab", &self.vocab).finish_non_exhaustive()
    }
}

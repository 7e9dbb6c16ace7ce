//! From the text of a grammar to something that can be followed, within limits.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{InferenceCapabilities, TokRxInfo, TokTrie, TokenizerEnv};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::GrammarMatcher;
use super::matcher::{Common, MOST_LEXER_BYTES, Start};
use super::schema::make_ready;
use super::words::in_plain_words;
use crate::Tokenizer;
use crate::text::calls::{CallForm, CallFormat, Function};
use crate::text::channel::ReasoningStart;
use crate::text::reasoning::ReasoningFormat;

/// Bytes of a grammar's text at most.
const MAX_SOURCE_BYTES: usize = 64 << 10;
/// Brackets inside brackets at most: parsers follow them by recursion.
const MAX_DEPTH: usize = 64;
/// Choices at most.
const MAX_CHOICES: usize = 1024;
/// Symbols of a compiled grammar at most.
const MAX_SYMBOLS: usize = 100_000;
/// States of its lexer at most, of 1 to 2 KiB each; they come as they are needed. One mask may need one for each node of the vocabulary's trie.
const MAX_LEXER_STATES: usize = 100_000;
/// Expressions that one mask may take: the library's own count, of some tenths of a microsecond each.
const MAX_STEP_FUEL: u64 = 500_000;
/// Bytes of a token at most.
const MAX_WORD_BYTES: usize = 1000;
/// The name of a grammar that another one leads to.
const FORM: &str = "form";
/// Tokens of an output that a grammar is tried with.
const TRIED_TOKENS: usize = 4;

/// A grammar as a request states it.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    /// JSON by a schema.
    JsonSchema(Value),
    /// The whole output matches a regular expression, in the syntax of Rust's `regex`.
    Regex(String),
    /// A grammar in llguidance's kind of Lark, which begins with `start`.
    Lark(String),
    /// One of several texts.
    Choice(Vec<String>),
    /// Tool calls.
    Calls(CallForm),
    /// One of these behind reasoning, which is free: the output begins there, or may.
    BehindReasoning(ReasoningFormat, ReasoningStart, Box<GrammarSource>),
}

/// Why a grammar is not taken.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{0}")]
pub struct GrammarError(String);

impl GrammarError {
    /// Says this.
    pub fn new(text: &str) -> GrammarError {
        GrammarError(text.to_owned())
    }
}

/// What grammars are compiled for: the tokens of a model. It can be handed to another process, which compiles for the same model.
#[derive(Debug, Deserialize, Serialize)]
pub struct GrammarVocabulary {
    /// What each token stands for.
    words: Vec<Vec<u8>>,
    /// Tokens that end a text.
    ends: Vec<u32>,
    /// Tags around calls that are one token.
    tags: Vec<(String, u32)>,
}

/// A grammar as the compiler takes it. It can be handed to another process.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct GrammarProgram(TopLevelGrammar);

/// Compiles grammars for one model's vocabulary.
pub struct GrammarCompiler {
    factory: ParserFactory,
    ends: Arc<[u32]>,
}

/// A compiled grammar. Clones and matchers share what they learn of it.
#[derive(Clone)]
pub struct Grammar {
    start: Start,
    common: Arc<Common>,
    ends: Arc<[u32]>,
    /// What is to be there as long as the grammar is.
    _held: Option<Arc<dyn Any + Send + Sync>>,
}

/// What llguidance asks of a vocabulary.
struct Vocabulary(TokTrie);

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.0.greedy_tokenize(bytes)
    }

    /// No token is forced because another way to write the same bytes would not be the tokenizer's own: what may follow depends on the
    /// bytes before alone, however they were divided into tokens.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

impl GrammarVocabulary {
    /// The `vocab` tokens of a model, of which `ends` end a text: one of them may come where the grammar is complete.
    ///
    /// # Errors
    /// There is no such token.
    pub fn new(tokenizer: &Tokenizer, vocab: usize, ends: &[u32]) -> Result<GrammarVocabulary, GrammarError> {
        let known = |end: &&u32| (**end as usize) < vocab;
        let ends: Vec<u32> = ends.iter().filter(known).copied().collect();
        if ends.is_empty() {
            return Err(GrammarError("the model has no token that could end a text".to_owned()));
        }
        let word = |id: u32| {
            if ends.contains(&id) || tokenizer.is_special(id) {
                let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
                word.extend_from_slice(format!("<{id}>").as_bytes());
                return word;
            }
            // A longer one is never allowed: the trie has no place for it.
            Some(tokenizer.token_bytes(id)).filter(|word| word.len() <= MAX_WORD_BYTES).unwrap_or_default()
        };
        let words = (0..vocab as u32).map(word).collect();
        let token = |tag: &'static str| Some((tag.to_owned(), tokenizer.token_id(tag)?));
        let formats = [ReasoningFormat::Think, ReasoningFormat::Harmony];
        let reasoning = formats.iter().flat_map(|format| format.tags()).copied();
        let tags = CallFormat::Hermes.tags().into_iter().chain(reasoning);
        let tags = tags.filter_map(token).collect();
        Ok(GrammarVocabulary { words, ends, tags })
    }

    /// A grammar of a request as the compiler takes it. Takes no longer than reading it.
    ///
    /// # Errors
    /// It is too long, nested too deeply, or no grammar of its kind.
    pub fn program(&self, source: &GrammarSource) -> Result<GrammarProgram, GrammarError> {
        let token = |tag: &str| self.tags.iter().find_map(|(name, id)| (name == tag).then_some(*id));
        let grammar = match source {
            GrammarSource::BehindReasoning(format, start, source) => {
                let calls = matches!(source.as_ref(), GrammarSource::Calls(form) if form.format == CallFormat::Harmony);
                let GrammarProgram(mut grammar) = self.program(source)?;
                let before = format.lark(*start, FORM, calls, token);
                if let (Some(before), [form]) = (before, grammar.grammars.as_mut_slice()) {
                    form.name = Some(FORM.to_owned());
                    grammar.grammars.insert(0, GrammarWithLexer::from_lark(before));
                }
                grammar
            }
            GrammarSource::JsonObject => {
                TopLevelGrammar::from_json_schema(compact(&json!({"type": "object"}))?)
            }
            GrammarSource::JsonSchema(schema) => {
                measure(&schema.to_string())?;
                let mut schema = compact(schema)?;
                make_ready(&mut schema).map_err(GrammarError)?;
                TopLevelGrammar::from_json_schema(schema)
            }
            GrammarSource::Regex(regex) => {
                measure(regex)?;
                TopLevelGrammar::from_regex(regex)
            }
            GrammarSource::Lark(grammar) => {
                measure(grammar)?;
                TopLevelGrammar::from_lark(grammar.clone())
            }
            GrammarSource::Choice(choices) => TopLevelGrammar::from_lark(alternatives(choices)?),
            GrammarSource::Calls(form) => {
                let mut form = form.clone();
                for Function { name, parameters } in &mut form.functions {
                    let ready = parameters.as_mut().map_or(Ok(()), make_ready);
                    ready.map_err(|why| GrammarError(format!("the function `{name}`, {why}")))?;
                }
                let grammar = form.lark(token);
                measure(&grammar)?;
                TopLevelGrammar::from_lark(grammar)
            }
        };
        Ok(GrammarProgram(grammar))
    }
}

impl GrammarCompiler {
    /// What a grammar may come to have beyond what it has once it is compiled, in bytes.
    pub const MOST_LEXER_BYTES: u64 = MOST_LEXER_BYTES as u64;

    /// For the tokens of a model.
    ///
    /// # Errors
    /// The tokens are none that could be followed.
    pub fn new(vocabulary: &GrammarVocabulary) -> Result<GrammarCompiler, GrammarError> {
        let GrammarVocabulary { words, ends, .. } = vocabulary;
        let &first = ends.first().ok_or_else(|| GrammarError("no token ends a text".to_owned()))?;
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, first), words).with_eos_tokens(ends);
        let vocabulary = Arc::new(Vocabulary(trie)) as _;
        let caps = InferenceCapabilities::default();
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&vocabulary, caps, &slices)
            .map_err(|error| GrammarError(in_plain_words(&error.to_string())))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.max_grammar_size = MAX_SYMBOLS;
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.step_lexer_fuel = MAX_STEP_FUEL;
        limits.verbose_errors = false;
        Ok(GrammarCompiler { factory, ends: ends.as_slice().into() })
    }

    /// The same for grammars that are tried: a mask may take half as much. What passes has something to spare when a lexer that knows more or
    /// less than that of the trial is asked.
    pub fn for_trials(mut self) -> GrammarCompiler {
        self.factory.limits_mut().step_lexer_fuel = MAX_STEP_FUEL / 2;
        self
    }

    /// Compiles a grammar. Takes milliseconds for most, but there are small ones that take minutes, gigabytes, or more stack than a thread
    /// has by itself: what strangers send is for a process that can be stopped.
    ///
    /// # Errors
    /// It is wrong, has what is not offered, or is beyond a limit.
    pub fn compile(&self, program: &GrammarProgram) -> Result<Grammar, GrammarError> {
        let started = catch_unwind(AssertUnwindSafe(|| {
            let mut start = self.factory.create_parser(program.0.clone())?;
            start.start_without_prompt();
            Ok(start)
        }));
        match started {
            Ok(shared) => Ok(Grammar {
                start: Start { untouched: Arc::new(shared.deep_clone()), shared },
                common: Arc::default(),
                ends: self.ends.clone(),
                _held: None,
            }),
            Err(error) => Err(GrammarError(in_plain_words(&error.to_string()))),
        }
    }
}

impl Grammar {
    /// A matcher at the beginning of an output.
    pub fn matcher(&self) -> GrammarMatcher {
        GrammarMatcher::new(&self.start, self.common.clone(), self.ends.clone())
    }

    /// Follows it a little way, which makes much of what it will have.
    ///
    /// # Errors
    /// Its masks take more work than they may.
    pub fn try_out(&self) -> Result<(), GrammarError> {
        let mut matcher = self.matcher();
        let mut output = Vec::new();
        while let Some(mask) = matcher.allowed() {
            if let Some(reason) = mask.failure() {
                return Err(GrammarError(reason.to_owned()));
            }
            let Some(token) = matcher.longest(&mask) else { break };
            output.push(token);
            if output.len() == TRIED_TOKENS {
                break;
            }
            matcher.follow(&output);
        }
        Ok(())
    }

    /// The same, which keeps something: its part of a budget, for instance.
    pub fn holding(self, held: Arc<dyn Any + Send + Sync>) -> Grammar {
        Grammar { _held: Some(held), ..self }
    }

    /// Whether its lexer, which matchers share, is at its limit or broken: whoever comes next had better compile it anew.
    pub fn spent(&self) -> bool {
        self.common.spent()
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("ends", &self.ends).finish_non_exhaustive()
    }
}

/// JSON is written without spaces between its parts, unless the schema says otherwise: with them a text need never end.
fn compact(schema: &Value) -> Result<Value, GrammarError> {
    let how = json!({"whitespace_flexible": false, "item_separator": ",", "key_separator": ":"});
    match schema {
        Value::Object(map) => {
            let mut map = map.clone();
            map.entry("x-guidance").or_insert(how);
            Ok(Value::Object(map))
        }
        Value::Bool(true) => Ok(Value::Object(Map::from_iter([("x-guidance".to_owned(), how)]))),
        _ => Err(GrammarError("a JSON schema is an object".to_owned())),
    }
}

fn alternatives(choices: &[String]) -> Result<String, GrammarError> {
    if choices.is_empty() || choices.len() > MAX_CHOICES {
        return Err(GrammarError(format!("there are {} choices; give 1 to {MAX_CHOICES}", choices.len())));
    }
    if choices.iter().any(String::is_empty) {
        return Err(GrammarError("a choice is empty".to_owned()));
    }
    // Strings of Lark are written as in JSON.
    let literals: Vec<String> =
        choices.iter().map(|choice| Value::from(choice.as_str()).to_string()).collect();
    let bytes: usize = literals.iter().map(String::len).sum();
    if bytes > MAX_SOURCE_BYTES {
        return Err(too_long(bytes));
    }
    Ok(format!("start: {}", literals.join(" | ")))
}

/// Refuses what no parser should be given.
fn measure(source: &str) -> Result<(), GrammarError> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(too_long(source.len()));
    }
    let mut depth = 0usize;
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(GrammarError(format!("brackets are nested deeper than {MAX_DEPTH}")));
        }
    }
    Ok(())
}

fn too_long(bytes: usize) -> GrammarError {
    GrammarError(format!("it has {bytes} bytes; {MAX_SOURCE_BYTES} are taken at most"))
}

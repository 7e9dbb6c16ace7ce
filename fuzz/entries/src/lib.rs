//! What strangers write, read as the daemon reads it, with what must hold whatever they write. Fuzzers call these functions with bytes of
//! their own making (fuzz/), and a test with what those have found worth keeping.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use actix_web::ResponseError;
use faser_actors::Dtype;
use faser_config::Config;
use faser_config::changes::changed;
use faser_config::raw::Document;
use faser_models::{
    ChatTemplate, Conversation, Detokenizer, GrammarCompiler, GrammarSource, GrammarVocabulary, LastTurn,
    ModelConfig, Shard, Tokenizer, check_gguf, check_header,
};
use faser_openai::errors::ApiError;
use faser_openai::stop::StopMatcher;
use faser_openai::{
    Bounds, Completion, Prompt, TemplateReads, chat_asked, completion_asked, ids_asked, read, response_asked,
    tokens_asked,
};
use serde_json::{Value, json};

const BOUNDS: Bounds<'static> = Bounds {
    template: TemplateReads { tools: false, reasoning_effort: true, verbosity: false },
    ..Bounds::EVERYTHING
};
/// A refusal is for people to read.
const LONGEST_MESSAGE: usize = 4096;

/// What a fuzzer calls, with its name, which is also that of its folder below fuzz/corpus.
pub type Entry = (&'static str, fn(&[u8]));

/// All of them.
pub const ENTRIES: [Entry; 7] = [
    ("config", config),
    ("requests", requests),
    ("checkpoint", checkpoint),
    ("gguf", gguf),
    ("chat_template", chat_template),
    ("tokenizer", tokenizer),
    ("grammars", grammars),
];

/// A config file.
///
/// # Panics
/// A config differs from itself, or a refusal says nothing.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = Document::parse(Path::new("x.yaml"), text.to_owned())
        .and_then(|document| Ok((Config::from_document(&document)?, document)));
    match read {
        Ok((_, document)) => assert_eq!(changed(&document, &document), Ok(Vec::new())),
        Err(err) => assert!(!err.message.is_empty()),
    }
}

/// The body of a request; its first byte chooses the route.
///
/// # Panics
/// What was taken is out of bounds, or a refusal is none of a client's.
pub fn requests(data: &[u8]) {
    let Some((route, body)) = data.split_first() else { return };
    let refused = match route % 8 {
        0 => read(body, &BOUNDS, completion_asked).map(|Completion { prompts, parameters, .. }| {
            assert!((1..=BOUNDS.max_prompts).contains(&prompts.len()));
            for prompt in prompts {
                if let Prompt::Ids(ids) = prompt {
                    let cut = parameters.prompt_tokens.kept != Default::default();
                    assert!(cut || ids.len() <= BOUNDS.max_context);
                    assert!(ids.iter().all(|id| (*id as usize) < BOUNDS.vocab));
                }
            }
            assert!((0.0..=2.0).contains(&parameters.sampling.temperature));
            assert!((1..=16).contains(&parameters.n.0) && parameters.logprobs.unwrap_or(0) <= 32);
            assert!(parameters.sampling.top_p > 0.0 && parameters.sampling.top_p <= 1.0);
            assert!(parameters.sampling.logit_bias.is_sorted_by(|a, b| a.0 < b.0));
            assert!(parameters.stop.iter().all(|stop| (1..=256).contains(&stop.len())));
        }),
        1 => read(body, &BOUNDS, chat_asked).map(|(conversation, _)| check_messages(&conversation.messages)),
        2 => read(body, &BOUNDS, tokens_asked).map(drop),
        4 => read(body, &BOUNDS, response_asked).map(|asked| check_messages(&asked.conversation.messages)),
        _ => read(body, &BOUNDS, ids_asked)
            .map(|ids| assert!(ids.iter().all(|id| (*id as usize) < BOUNDS.vocab))),
    };
    if let Err(err) = refused {
        check_refusal(&err);
    }
}

fn check_messages(messages: &Value) {
    let messages = messages.as_array().map(Vec::as_slice).unwrap_or_default();
    assert!((1..=4097).contains(&messages.len()));
    for message in messages {
        let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert!(message["content"].is_string());
        assert!(calls.iter().all(|call| call["function"]["arguments"].is_object()));
    }
}

fn check_refusal(err: &ApiError) {
    assert!(err.status_code().is_client_error(), "{err}");
    let message = err.to_string();
    assert!((1..=LONGEST_MESSAGE).contains(&message.len()), "{} bytes", message.len());
    assert!(!message.chars().any(char::is_control), "{message:?}");
}

/// A file of weights, or a config.json, as the first byte says.
///
/// # Panics
/// A tensor lies outside of its file, or a shape has no size.
pub fn checkpoint(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    if kind % 2 == 0 {
        match check_header(rest) {
            Ok(places) => assert!(places.iter().all(|place| rest.get(place.clone()).is_some())),
            Err(problem) => assert!(!problem.is_empty()),
        }
    } else if let Ok(keys) = serde_json::from_slice::<Value>(rest)
        && let Ok(config) = ModelConfig::from_json(Path::new("config.json"), keys)
        // A model of thousands of layers has no other bugs, and takes long.
        && config.layers.len() <= 64
    {
        assert!(config.weight_bytes(Shard::WHOLE, Dtype::Bf16).is_ok_and(|bytes| bytes > 0));
        assert!(config.kv_bytes_per_token(Dtype::Bf16) > 0);
    }
}

/// A GGUF file.
///
/// # Panics
/// A tensor lies outside of its file, or a refusal says nothing.
pub fn gguf(data: &[u8]) {
    match check_gguf(Path::new("x.gguf"), data) {
        Ok((config, places)) => {
            assert!(config.vocab > 0 && places.iter().all(|place| data.get(place.clone()).is_some()));
        }
        Err(problem) => assert!(!problem.to_string().is_empty()),
    }
}

/// A chat template, and behind a zero byte the messages, one a line.
///
/// # Panics
/// It writes more than it may.
pub fn chat_template(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (source, messages) = text.split_once('\0').unwrap_or((text, "hello"));
    let messages: Vec<Value> = messages
        .lines()
        .enumerate()
        .map(|(i, line)| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": line}))
        .collect();
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let tokens = tokens.map(|(name, token)| (name.to_owned(), token.into())).into_iter().collect();
    let Ok(template) = ChatTemplate::of("template".into(), source, tokens) else { return };
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let plain = Conversation::of(messages.into());
    let with_tools =
        Conversation { tools: Some(json!([tool])), last_turn: LastTurn::Continued, ..plain.clone() };
    for conversation in [plain, with_tools] {
        if let Ok(rendered) = template.render(&conversation) {
            assert!(rendered.len() <= 8 * data.len() + (2 << 20));
        }
    }
}

/// A tokenizer.json, or token ids that a stream is made of, as the first byte says.
///
/// # Panics
/// A stream shows other text than the whole, or a stop string comes out.
pub fn tokenizer(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    if kind % 4 == 3 {
        if let Ok(tokenizer) = Tokenizer::from_json(rest, Path::new("tokenizer.json")) {
            let ids = tokenizer.encode("Hello, wörld 🦀\n\n  x", true).unwrap_or_default();
            streams_as_it_decodes(&Arc::new(tokenizer), &ids);
        }
        return;
    }
    let tokenizer = &known()[usize::from(kind % 4)];
    let ids: Vec<u32> =
        rest.chunks(2).map(|pair| pair.iter().fold(0, |id, byte| id * 256 + u32::from(*byte))).collect();
    streams_as_it_decodes(tokenizer, &ids);
    if let Ok(text) = std::str::from_utf8(rest)
        && let Ok(ids) = tokenizer.encode(text, false)
    {
        streams_as_it_decodes(tokenizer, &ids);
    }
}

fn streams_as_it_decodes(tokenizer: &Arc<Tokenizer>, ids: &[u32]) {
    let whole = tokenizer.decode(ids);
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer));
    let stop = "e";
    let mut matcher = StopMatcher::new(vec![stop.to_owned(), "\u{fffd}\u{fffd}".to_owned()], false);
    let (mut shown, mut stopped) = (String::new(), String::new());
    for id in ids {
        let text = detokenizer.push(*id).unwrap_or_default();
        stopped.push_str(&matcher.push(&text));
        shown.push_str(&text);
    }
    shown.push_str(&detokenizer.finish());
    assert_eq!(shown, whole);
    assert!(whole.starts_with(&stopped) && !stopped.contains(stop));
}

/// Tokenizers of each kind, made for tests.
fn known() -> &'static [Arc<Tokenizer>; 3] {
    static KNOWN: OnceLock<[Arc<Tokenizer>; 3]> = OnceLock::new();
    const FILES: [&[u8]; 2] = [
        include_bytes!("../../../models/tests/golden/tokenizer-byte-level/tokenizer.json"),
        include_bytes!("../../../models/tests/golden/tokenizer-sentencepiece/tokenizer.json"),
    ];
    KNOWN.get_or_init(|| {
        let [bytes, pieces] = FILES.map(|file| {
            Tokenizer::from_json(file, Path::new("tokenizer.json")).expect("a file of the repository")
        });
        [bytes, pieces, Tokenizer::synthetic(300).expect("as many tokens as bytes")].map(Arc::new)
    })
}
/// A grammar, its kind by the first byte, and what follows it for up to 200 tokens.
///
/// # Panics
/// A token that may come may not; what is refused says nothing, or too much.
pub fn grammars(data: &[u8]) {
    const VOCAB: usize = 256;
    const END: u32 = 255;
    const STEPS: usize = 200;
    const MOST_BYTES: usize = 2 << 10;
    static COMPILER: OnceLock<Option<(GrammarVocabulary, GrammarCompiler)>> = OnceLock::new();
    let Some((kind, text)) = data.split_first().filter(|_| data.len() <= MOST_BYTES) else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let source = match kind % 4 {
        0 => match serde_json::from_str(text) {
            Ok(schema) => GrammarSource::JsonSchema(schema),
            Err(_) => return,
        },
        1 => GrammarSource::Regex(text.to_owned()),
        2 => GrammarSource::Lark(text.to_owned()),
        _ => GrammarSource::Choice(text.lines().map(str::to_owned).collect()),
    };
    let compiler = COMPILER.get_or_init(|| {
        let vocabulary = GrammarVocabulary::new(&Tokenizer::synthetic(VOCAB).ok()?, VOCAB, &[END]).ok()?;
        let compiler = GrammarCompiler::new(&vocabulary).ok()?;
        Some((vocabulary, compiler))
    });
    let Some((vocabulary, compiler)) = compiler else { panic!("no compiler for bytes") };
    let work = || {
        let grammar = match vocabulary.program(&source).and_then(|program| compiler.compile(&program)) {
            Ok(grammar) => grammar,
            Err(refused) => return readable(&refused.to_string()),
        };
        if let Err(refused) = grammar.try_out() {
            return readable(&refused.to_string());
        }
        let (mut matcher, mut output) = (grammar.matcher(), Vec::new());
        for step in 0..STEPS {
            matcher.follow(&output);
            let mask = matcher.allowed().expect("what was allowed so far leads on");
            if let Some(reason) = mask.failure() {
                return readable(reason);
            }
            let may: Vec<u32> = (0..VOCAB as u32).filter(|token| mask.allows(*token)).collect();
            let next = may[(data[step % data.len()] as usize + step) % may.len()];
            if next == END {
                return;
            }
            assert_eq!(
                matcher.valid_prefix_len(&output, &[next]),
                Some(1),
                "token {next} may come behind {output:?}"
            );
            output.push(next);
        }
    };
    // What is tried in a process of its own has a stack like this.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(256 << 20).spawn_scoped(scope, work);
        thread.expect("a thread").join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn readable(refusal: &str) {
    assert!(!refusal.is_empty() && refusal.len() <= LONGEST_MESSAGE, "{refusal}");
    // The grammar itself may be in it; what the library appends is on lines of its own.
    assert!(!refusal.contains("\n<"), "{refusal}");
}

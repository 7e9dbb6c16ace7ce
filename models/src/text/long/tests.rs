//! Pieces against wholes, for tokenizers of every kind that pieces are made for, and some that they are not.

use std::path::Path;
use std::sync::OnceLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const NEMO: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A tokenizer, and what is to be known of it.
struct Case {
    name: &'static str,
    inner: Tokenizer,
    long: Long,
    in_pieces: bool,
    bounded: bool,
}

fn file(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn case(name: &'static str, json: &Value, in_pieces: bool, bounded: bool) -> Case {
    let inner = Tokenizer::from_bytes(json.to_string()).unwrap_or_else(|err| panic!("{name}: {err}"));
    let long = Long { piece: 8, stretch: 200, ..Long::of(&inner) };
    Case { name, inner, long, in_pieces, bounded }
}

fn with(json: &Value, change: impl FnOnce(&mut Value)) -> Value {
    let mut json = json.clone();
    change(&mut json);
    json
}

fn words_by(pattern: &str) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]})
}

/// Without the tokens and merges that go on behind a word: SentencePiece's are of this kind.
fn words_apart(json: &Value) -> Value {
    with(json, |json| {
        let within = |token: &str| !token.chars().skip(1).any(|c| c == '▁');
        let model = &mut json["model"];
        let gone: Vec<u64> = {
            let vocab = model["vocab"].as_object_mut().unwrap();
            let gone = vocab.iter().filter(|(token, _)| !within(token)).map(|(_, id)| id.as_u64().unwrap());
            let gone = gone.collect();
            vocab.retain(|token, _| within(token));
            gone
        };
        assert!(!gone.is_empty());
        model["merges"].as_array_mut().unwrap().retain(|merge| {
            let merged = match merge {
                Value::String(pair) => pair.replace(' ', ""),
                pair => pair.as_array().unwrap().iter().map(|side| side.as_str().unwrap()).collect(),
            };
            within(&merged)
        });
    })
}

fn added(content: &str, flags: &[&str]) -> Value {
    let mut token = json!({
        "id": 9000 + content.len(), "content": content, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": false,
    });
    flags.iter().for_each(|flag| token[flag] = true.into());
    token
}

fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let rustdoc = file("rustdoc/target/tokenizer.json");
        let bytes = file("tests/golden/tokenizer-byte-level/tokenizer.json");
        let sentences = file("tests/golden/tokenizer-sentencepiece/tokenizer.json");
        let llama_2 = words_apart(&sentences);
        let metaspace = |scheme: &str, split: bool| {
            with(&llama_2, |json| {
                json["normalizer"] = Value::Null;
                json["pre_tokenizer"] = json!({
                    "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split,
                });
            })
        };
        let nfc = |json: &Value| with(json, |json| json["normalizer"] = json!({"type": "NFC"}));
        let words = |pattern| with(&rustdoc, |json| json["pre_tokenizer"] = words_by(pattern));
        let tokens = |json: &Value, tokens: &[Value]| {
            with(json, |json| json["added_tokens"].as_array_mut().unwrap().extend_from_slice(tokens))
        };
        let stripping = [
            added("<mask>", &["lstrip", "rstrip"]),
            added("[word]", &["single_word"]),
            added("yes", &[]),
            added("one, two", &["normalized"]),
        ];
        let normalizer = |stage: Value| with(&rustdoc, |json| json["normalizer"] = stage);
        vec![
            case("rustdoc", &rustdoc, true, true),
            case("byte level", &bytes, true, true),
            case("llama 3", &words(LLAMA_3), true, true),
            case("qwen", &nfc(&words(QWEN)), true, true),
            case("nemo", &words(NEMO), true, true),
            case(
                "a space in front",
                &with(&bytes, |json| json["pre_tokenizer"]["add_prefix_space"] = true.into()),
                true,
                true,
            ),
            case(
                "digits",
                &with(&bytes, |json| {
                    let byte_level = json["pre_tokenizer"].clone();
                    let digits = json!({"type": "Digits", "individual_digits": true});
                    json["pre_tokenizer"] =
                        json!({"type": "Sequence", "pretokenizers": [digits, byte_level]});
                }),
                true,
                true,
            ),
            case("sentences", &sentences, true, true),
            case("llama 2", &llama_2, true, true),
            case("metaspace", &metaspace("always", true), true, true),
            case("metaspace, first", &metaspace("first", true), true, true),
            case("metaspace, one word", &metaspace("first", false), true, true),
            case("stripping tokens", &tokens(&rustdoc, &stripping), true, true),
            case("stripping tokens in llama 2", &tokens(&llama_2, &stripping), true, true),
            case("a token of spaces", &tokens(&rustdoc, &[added("  ", &[])]), true, true),
            case("a pattern of its own", &words(r"\w+|\W+"), false, true),
            case("lower case", &normalizer(json!({"type": "Lowercase"})), false, false),
            case(
                "stripped",
                &normalizer(json!({"type": "Strip", "strip_left": true, "strip_right": true})),
                false,
                false,
            ),
            case("compatibility", &normalizer(json!({"type": "NFKC"})), false, false),
            case(
                "dashes that go",
                &normalizer(json!({"type": "Replace", "pattern": {"String": "-"}, "content": ""})),
                false,
                false,
            ),
            case(
                "without bytes",
                &with(&llama_2, |json| json["model"]["byte_fallback"] = false.into()),
                true,
                false,
            ),
        ]
    })
}

/// What may go wrong at a seam, and in between.
const PARTS: [&str; 52] = [
    "the",
    "Vec",
    "returns",
    "x",
    "Options",
    "yes",
    "e",
    "i",
    "é",
    "e\u{301}",
    "\u{301}",
    "слово",
    "日本語",
    "か",
    "\u{3099}",
    "각",
    "\u{1100}\u{1161}",
    " ",
    " ",
    " ",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\u{a0}",
    "\u{3000}",
    ",",
    ".",
    "; ",
    "!",
    "。",
    "，",
    "'s",
    "'re",
    "'",
    "7",
    "1234",
    "-",
    "->",
    "<s>",
    "<mask>",
    "[word]",
    "one, two",
    "<tool é>",
    "▁",
    "<0x41>",
    "🦀",
    "K",
    " ſ",
];

fn texts() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(PARTS.as_slice()), 0..80).prop_map(|parts| parts.concat())
}

fn whole(case: &Case, text: &str, add_special: bool) -> Vec<u32> {
    case.inner.encode_fast(text, add_special).unwrap().get_ids().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn pieces_are_the_whole(text in texts(), which in 0..21_usize, add_special: bool, most in 0..80_usize) {
        let case = &cases()[which];
        let whole = whole(case, &text, add_special);
        let pieces = case.long.encode(&case.inner, &text, add_special, usize::MAX).unwrap();
        prop_assert_eq!(&pieces, &Encoded::All(whole.clone()), "{}", case.name);
        match case.long.encode(&case.inner, &text, add_special, most).unwrap() {
            Encoded::All(ids) => prop_assert_eq!(ids, whole, "{}", case.name),
            Encoded::TooMany => prop_assert!(whole.len() > most, "{}: not more than {most}", case.name),
        }
    }

    #[test]
    fn a_text_has_no_fewer_tokens_than_it_weighs(text in texts(), which in 0..21_usize) {
        let case = &cases()[which];
        prop_assert!(case.long.weight(&text, u64::MAX) <= weight_of(whole(case, &text, false).len()), "{}", case.name);
    }

    #[test]
    fn every_cut_is_one(text in texts(), which in 0..21_usize) {
        let case = &cases()[which];
        let Some(cuts) = &case.long.cuts else { return Ok(()) };
        let all = whole(case, &text, false);
        let mut at = 1;
        while let Some(cut) = (at < text.len()).then(|| cuts.find(&text, at, text.len())).flatten() {
            let before = whole(case, &text[..cut], false);
            let behind = case.long.piece(&case.inner, &text, cut..text.len()).unwrap();
            prop_assert_eq!(behind.map(|ids| [before, ids].concat()), Some(all.clone()), "{}: {}", case.name, cut);
            at = cut + 1;
        }
    }
}

#[test]
fn it_is_known_which_tokenizers_can_be_cut_and_bounded() {
    assert_eq!(cases().len(), 21);
    let text = "Returns the number of elements, in the vector. ".repeat(30);
    let mut faults = Vec::new();
    for Case { name, long, in_pieces, bounded, .. } in cases() {
        let pieces = long.cuts.as_ref().is_some_and(|cuts| cuts.find(&text, 20, 200).is_some());
        let found = (pieces, long.fewest.is_some(), long.around.is_some());
        if found != (*in_pieces, *bounded, true) {
            faults.push(format!("{name}: {found:?}"));
        }
    }
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn texts_of_a_token_repeated_are_not_refused() {
    for case in cases().iter().filter(|case| case.bounded) {
        for id in 0..case.inner.get_vocab_size(true) as u32 {
            let Some(token) = case.inner.id_to_token(id) else { continue };
            let text = case.inner.decode(&[id], false).unwrap_or_default().repeat(3) + &token;
            let ids = whole(case, &text, false).len();
            assert!(case.long.weight(&text, u64::MAX) <= weight_of(ids), "{}: {text:?}", case.name);
        }
    }
}

#[test]
fn a_text_that_is_far_too_long_is_found_out_by_its_length() {
    for case in cases().iter().filter(|case| case.bounded && case.name != "sentences") {
        for text in ["x".repeat(1 << 20), "日本".repeat(1 << 18), "Of words. ".repeat(1 << 17)] {
            assert!(case.long.weight(&text, u64::MAX) > weight_of(4096), "{}", case.name);
            let found = case.long.encode(&case.inner, &text, true, 4096).unwrap();
            assert_eq!(found, Encoded::TooMany, "{}", case.name);
        }
    }
}

#[test]
fn a_text_of_many_tokens_is_found_out_on_the_way() {
    let case = &cases()[0];
    let long = Long { fewest: None, ..Long::of(&case.inner) };
    let text = "Returns the number of elements in the vector.\n".repeat(1 << 14);
    let Encoded::All(ids) = long.encode(&case.inner, &text, true, usize::MAX).unwrap() else { panic!() };
    assert_eq!(ids, whole(case, &text, true));
    assert_eq!(long.encode(&case.inner, &text, true, ids.len()).unwrap(), Encoded::All(ids.clone()));
    assert_eq!(long.encode(&case.inner, &text, true, ids.len() - 1).unwrap(), Encoded::TooMany);
    assert_eq!(long.encode(&case.inner, &text, true, 9).unwrap(), Encoded::TooMany);
    assert_eq!(long.beginning(&case.inner, &text, 5000).unwrap(), ids[1..5001]);
}

#[test]
fn a_beginning_is_had_of_texts_that_cannot_be_cut() {
    for case in cases() {
        let text = "日本語".repeat(200);
        let ids = case.long.beginning(&case.inner, &text, 50).unwrap();
        assert_eq!(ids.len(), 50, "{}", case.name);
        assert!(case.long.beginning(&case.inner, "", 50).unwrap().is_empty());
        assert_eq!(case.long.beginning(&case.inner, "the", 50).unwrap(), whole(case, "the", false));
    }
}

#[test]
fn a_stretch_that_cannot_be_cut_is_one_piece_with_the_rest() {
    // The pattern gives up over so many spaces, and what follows is not split into words any more.
    let text = format!("one two{}three's four", " ".repeat(1_200_000));
    for case in &cases()[..2] {
        let long = Long::of(&case.inner);
        let ids = long.encode(&case.inner, &text, false, usize::MAX).unwrap();
        assert!(ids == Encoded::All(whole(case, &text, false)), "{}", case.name);
    }
}

//! Grammars over the vocabulary of synthetic models, whose first 256 tokens are bytes, and over a tokenizer's.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use super::*;
use crate::Tokenizer;
use proptest::prelude::*;
use serde_json::json;

const END: u32 = 255;

/// Compiles what requests state.
pub(crate) struct Both {
    vocabulary: GrammarVocabulary,
    compiler: GrammarCompiler,
}

impl Both {
    pub(crate) fn new(tokenizer: &Tokenizer, vocab: usize, ends: &[u32]) -> Result<Both, GrammarError> {
        let vocabulary = GrammarVocabulary::new(tokenizer, vocab, ends)?;
        // Compilers of other processes get it in this way.
        let sent = serde_json::to_vec(&vocabulary).unwrap();
        let compiler = GrammarCompiler::new(&serde_json::from_slice(&sent).unwrap())?;
        Ok(Both { vocabulary, compiler })
    }

    pub(crate) fn compile(&self, source: &GrammarSource) -> Result<Grammar, GrammarError> {
        let sent = serde_json::to_vec(&self.vocabulary.program(source)?).unwrap();
        self.compiler.compile(&serde_json::from_slice(&sent).unwrap())
    }
}

fn compiler() -> Both {
    Both::new(&Tokenizer::synthetic(256).unwrap(), 256, &[END]).unwrap()
}

fn sources() -> Vec<GrammarSource> {
    let schema = json!({
        "type": "object", "required": ["name", "size"], "additionalProperties": false,
        "properties": {"name": {"type": "string", "maxLength": 4}, "size": {"enum": [1, 20, null]}},
    });
    vec![
        GrammarSource::JsonObject,
        GrammarSource::JsonSchema(schema),
        GrammarSource::Regex("[a-c]{2,5}(x|yy)*".to_owned()),
        GrammarSource::Lark("start: \"<\" word \">\"\nword: /[a-z]+/ | \"<\" word \">\"".to_owned()),
        GrammarSource::Choice(vec!["yes".to_owned(), "yesterday".to_owned(), "é\"\\n".to_owned()]),
    ]
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Whether a text is what a grammar allows, up to its end.
fn accepts(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = grammar.matcher();
    let mut all = ids(text);
    all.push(END);
    (0..all.len()).all(|at| {
        matcher.follow(&all[..at]);
        matcher.allowed().is_some_and(|mask| mask.allows(all[at]))
    })
}

#[test]
fn every_kind_of_grammar_follows_reasoning_which_is_free() {
    use crate::{ReasoningFormat, ReasoningStart};
    let compiler = compiler();
    let good = ["{}", "{\"name\":\"ab\",\"size\":20}", "ab", "<a>", "yes"];
    for (source, good) in sources().into_iter().zip(good) {
        let behind = |start| {
            let source = Box::new(source.clone());
            compiler.compile(&GrammarSource::BehindReasoning(ReasoningFormat::Think, start, source)).unwrap()
        };
        let thought = "Is it {\"a\"?\n\n</thin</think>";
        let [open, possible, closed] =
            [ReasoningStart::Open, ReasoningStart::Possible, ReasoningStart::Closed].map(behind);
        assert!(accepts(&open, &format!("{thought}{good}")), "{good}");
        assert!(accepts(&open, &format!("</think>{good}")), "{good}");
        assert!(!accepts(&open, good) && !accepts(&open, &format!("{thought}{thought}{good}")), "{good}");
        assert!(accepts(&possible, &format!("<think>{thought}{good}")), "{good}");
        assert!(accepts(&possible, good) && !accepts(&possible, &format!("{thought}{good}")), "{good}");
        assert!(accepts(&closed, good) && !accepts(&closed, &format!("<think>{thought}{good}")), "{good}");
        assert!(!accepts(&open, &format!("{thought}{good}}}")) && !accepts(&open, thought), "{good}");
    }
}

#[test]
fn each_kind_of_grammar_takes_what_it_should_and_nothing_else() {
    let compiler = compiler();
    let grammars: Vec<Grammar> = sources().iter().map(|source| compiler.compile(source).unwrap()).collect();
    for (number, good, bad) in [
        (0, vec!["{}", "{\"a\":[1,{\"b\":null}]}"], vec!["", "[]", "1", "{} ", "{\"a\"}"]),
        (
            1,
            vec!["{\"name\":\"ab\",\"size\":20}", "{\"name\":\"é\\n\",\"size\":null}"],
            vec!["{\"name\":\"abcde\",\"size\":1}", "{\"name\":\"a\",\"size\":2}", "{\"name\":\"a\"}", "{}"],
        ),
        (2, vec!["ab", "abcx", "aaaaayyx"], vec!["a", "abcabc", "aby", ""]),
        (3, vec!["<a>", "<<<zz>>>"], vec!["<>", "<a>>", "a"]),
        (4, vec!["yes", "yesterday", "é\"\\n"], vec!["ye", "yest", "no", "yesyes"]),
    ] {
        good.iter().for_each(|text| assert!(accepts(&grammars[number], text), "{number}: {text}"));
        bad.iter().for_each(|text| assert!(!accepts(&grammars[number], text), "{number}: {text}"));
    }
}

#[test]
fn what_must_come_is_found_without_a_model() {
    let grammar = compiler().compile(&sources()[1]).unwrap();
    let mut matcher = grammar.matcher();
    let mut forced = |output: &[u32], most| {
        let (forced, next) = matcher.forced(output, most);
        assert!(forced.iter().all(|forced| forced.certain), "each byte is a token: {forced:?}");
        (forced.iter().map(|forced| forced.token).collect::<Vec<u32>>(), next)
    };
    let (tokens, next) = forced(&[], 100);
    assert_eq!(tokens, ids("{\"name\":\""));
    assert!(next.is_some_and(|mask| mask.only().is_none() && mask.allows(u32::from(b'a'))));
    // Fewer are enough, and it can be asked again from elsewhere.
    assert_eq!(forced(&[], 3).0, ids("{\"n"));
    assert_eq!(forced(&ids("{\"name\":\"a\""), 100).0, ids(",\"size\":"));
    let (tokens, behind) = forced(&ids("{\"name\":\"a\",\"size\":n"), 100);
    assert_eq!(tokens, [ids("ull}"), vec![END]].concat());
    assert!(behind.is_none(), "behind the end anything may come");
}

#[test]
fn an_output_that_left_the_grammar_is_followed_again_once_it_is_taken_back() {
    let grammar = compiler().compile(&sources()[4]).unwrap();
    let mut matcher = grammar.matcher();
    let masks = matcher.along(&ids("ye"), &ids("sx!"));
    assert!(masks[0].as_ref().is_some_and(|mask| mask.only() == Some(u32::from(b's'))));
    assert!(masks[1].as_ref().is_some_and(|mask| mask.allows(END) && mask.allows(u32::from(b't'))));
    assert!(masks[2].is_none() && masks[3].is_none());
    let masks = matcher.along(&ids("yes"), &[END]);
    assert!(masks[0].is_some() && masks[1].is_none());
    assert_eq!(matcher.failure(), None);
    assert_eq!(matcher.forced(&ids("yest"), 100).0.last().map(|forced| forced.token), Some(END));
}

#[test]
fn a_tokenizers_tokens_are_their_bytes_and_its_marks_are_no_text() {
    for (folder, end) in [("tokenizer-byte-level", "</s>"), ("tokenizer-sentencepiece", "</s>")] {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder).join("tokenizer.json");
        let tokenizer = Tokenizer::from_json(&std::fs::read(&path).unwrap(), &path).unwrap();
        let end = tokenizer.token_id(end).unwrap();
        // A vocabulary that is padded, as models' are.
        let compiler = Both::new(&tokenizer, tokenizer.vocab_size() + 30, &[end]).unwrap();
        let grammar = compiler.compile(&GrammarSource::Regex("(Hello|日本)[ -z{}]*".to_owned())).unwrap();
        let mut matcher = grammar.matcher();
        let mut output = Vec::new();
        let mut text = Vec::new();
        for step in 0..40u32 {
            matcher.follow(&output);
            let mask = matcher.allowed().unwrap();
            let allowed: Vec<u32> =
                (0..tokenizer.vocab_size() as u32).filter(|id| mask.allows(*id) && *id != end).collect();
            assert!(
                allowed.iter().all(|id| !tokenizer.is_special(*id) && !tokenizer.token_bytes(*id).is_empty())
            );
            let next = allowed[(step as usize * 7919) % allowed.len()];
            text.extend(tokenizer.token_bytes(next));
            output.push(next);
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(text.starts_with("Hello") || text.starts_with("日本"), "{folder}: {text}");
        assert_eq!(matcher.failure(), None);
    }
}

#[test]
fn proposals_are_valid_up_to_the_first_that_is_forbidden() {
    let grammar = compiler().compile(&sources()[2]).unwrap();
    let mut matcher = grammar.matcher();
    let end = |text: &str| [ids(text), vec![END]].concat();
    for (output, proposals, valid_prefix_len) in [
        ("ab", ids("xyyx"), 4),
        ("ab", ids("cxz"), 2),
        ("", ids("zab"), 0),
        ("ab", vec![], 0),
        // Whether a text may end somewhere is for the mask to say, and behind its end nothing comes.
        ("ab", end("x"), 2),
        ("ab", [end("x"), ids("x")].concat(), 2),
        ("a", end(""), 1),
        ("ab", end("z"), 0),
        // Behind where it was left before, nothing is asked for.
        ("zz", ids("any"), 3),
    ] {
        assert_eq!(
            matcher.valid_prefix_len(&ids(output), &proposals),
            Some(valid_prefix_len),
            "{output} {proposals:?}"
        );
    }
    assert_eq!(matcher.failure(), None);
}

#[test]
fn what_is_wrong_or_too_large_is_refused_in_words() {
    let compiler = compiler();
    let deep = |open: &str, close: &str| open.repeat(10_000) + "a" + &close.repeat(10_000);
    for (source, words) in [
        (GrammarSource::Regex("(".to_owned()), "regex"),
        (GrammarSource::Regex(deep("(", ")")), "nested"),
        (GrammarSource::Lark("start: nothing".to_owned()), "nothing"),
        (GrammarSource::Lark(deep("(", ")")), "nested"),
        (GrammarSource::Lark("x".repeat(70_000)), "65536"),
        (GrammarSource::Choice(Vec::new()), "choices"),
        (GrammarSource::Choice(vec![String::new()]), "empty"),
        (GrammarSource::Choice(vec!["x".repeat(70_000)]), "65536"),
        (GrammarSource::JsonSchema(json!({"type": "strange"})), "strange"),
        (GrammarSource::JsonSchema(json!([])), "object"),
        (GrammarSource::JsonSchema(json!({"$ref": "#/nowhere"})), "nowhere"),
    ] {
        let refused = compiler.compile(&source).expect_err("this has to be refused").to_string();
        assert!(refused.contains(words) && refused.len() < 2000, "{words}: {refused}");
    }
    let none = Both::new(&Tokenizer::synthetic(256).unwrap(), 256, &[256]);
    assert!(none.is_err_and(|error| error.to_string().contains("end")));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 40, ..ProptestConfig::default() })]
    /// Whatever it was asked before, with whatever was taken back: what may come depends on the output alone.
    #[test]
    fn masks_are_a_function_of_the_output(
        number in 0usize..5, steps in prop::collection::vec((any::<u16>(), 0usize..6), 1..30),
    ) {
        let grammar = compiler().compile(&sources()[number]).unwrap();
        let mut matcher = grammar.matcher();
        let mut output: Vec<u32> = Vec::new();
        for (choice, back) in steps {
            output.truncate(output.len().saturating_sub(back));
            for _ in 0..4 {
                matcher.follow(&output);
                let found = matcher.allowed();
                let mut fresh = grammar.matcher();
                fresh.follow(&output);
                let expected = fresh.allowed();
                // Single tokens are valid_prefix_len just where the mask has them, an end apart; and asking changes nothing.
                if let Some(mask) = &found {
                    for token in 0..END {
                        prop_assert_eq!(matcher.valid_prefix_len(&output, &[token]) == Some(1), mask.allows(token), "{} {:?}", token, output);
                    }
                    let again = matcher.allowed();
                    prop_assert_eq!(again.as_ref().map(TokenMask::words), Some(mask.words()));
                }
                prop_assert_eq!(found.as_ref().map(TokenMask::words), expected.as_ref().map(TokenMask::words));
                let Some(mask) = found else { break };
                let allowed: Vec<u32> = (0..256).filter(|id| mask.allows(*id)).collect();
                prop_assert!(!allowed.is_empty());
                output.push(allowed[choice as usize % allowed.len()]);
            }
        }
        prop_assert_eq!(matcher.failure(), None);
    }
}

#[test]
fn text_that_must_come_is_divided_as_models_like_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("rustdoc/target/tokenizer.json");
    let tokenizer = Tokenizer::from_json(&std::fs::read(&path).unwrap(), &path).unwrap();
    let end = tokenizer.token_id("</s>").unwrap();
    let compiler = Both::new(&tokenizer, tokenizer.vocab_size(), &[end]).unwrap();
    let schema = json!({"type": "object", "properties": {"the_number_of_functions": {"type": "boolean"}}, "required": ["the_number_of_functions"]});
    let mut matcher = compiler.compile(&GrammarSource::JsonSchema(schema)).unwrap().matcher();
    let (forced, _) = matcher.forced(&[], 100);
    let tokens: Vec<u32> = forced.iter().map(|forced| forced.token).collect();
    let text = tokenizer.decode(&tokens);
    assert!("{\"the_number_of_functions\":".starts_with(&text) && text.len() > 20, "{text}");
    assert_eq!(tokens, tokenizer.encode(&text, false).unwrap());
    assert!(forced.iter().any(|forced| !forced.certain));
}

/// Follows an output of `a`s for as long as it can be; how long that is, and why it ends.
fn fails_after(matcher: &mut GrammarMatcher, most: usize) -> (usize, Option<String>) {
    let mut output = Vec::new();
    while output.len() < most {
        matcher.follow(&output);
        let mask = matcher.allowed().unwrap();
        if let Some(reason) = mask.failure() {
            assert!(mask.allows(END) && mask.only() == Some(END));
            return (output.len(), Some(reason.to_owned()));
        }
        output.push(u32::from(b'a'));
    }
    (most, None)
}

#[test]
fn what_can_be_read_in_too_many_ways_fails_by_a_count_at_the_same_place_however_it_is_asked() {
    let source = GrammarSource::Lark("start: e\ne: e e e e | \"a\"* | (\"a\"*)*".to_owned());
    let grammar = compiler().compile(&source).unwrap();
    let mut matcher = grammar.matcher();
    let (tokens, reason) = fails_after(&mut matcher, 200);
    assert!(
        (20..200).contains(&tokens) && reason.as_deref().unwrap().contains("ambiguous"),
        "{tokens} {reason:?}"
    );
    // At once, without a mask before, as after a preemption; and again after something else.
    let output = vec![u32::from(b'a'); 200];
    for _ in 0..2 {
        let mut other = grammar.matcher();
        other.follow(&output[..tokens - 1]);
        assert_eq!(other.allowed().unwrap().failure(), None);
        other.follow(&output[..tokens]);
        assert!(other.allowed().unwrap().failure().is_some() && other.failure().is_some());
        // What failed may be taken back: it was a proposal, say.
        other.follow(&output[..3]);
        assert_eq!((other.allowed().unwrap().failure(), other.failure()), (None, None));
        assert_eq!(fails_after(&mut other, 200).0, tokens);
    }
}

#[test]
fn ordinary_grammars_come_nowhere_near_the_count() {
    let source = GrammarSource::JsonSchema(
        json!({"type": "array", "items": {"anyOf": (0..20).map(|kind| json!({
        "type": "object", "required": ["kind", "text"], "additionalProperties": false,
        "properties": {"kind": {"const": format!("kind {kind}")}, "text": {"type": "string"}, "more": {"type": "array"}},
    })).collect::<Vec<_>>()}}),
    );
    let grammar = compiler().compile(&source).unwrap();
    let item = "{\"kind\":\"kind 17\",\"text\":\"some words, \\\"quoted\\\", and more\",\"more\":[1,[true,{\"a\":null}]]}";
    let text = format!("[{}]", vec![item; 60].join(","));
    assert!(accepts(&grammar, &text));
}

#[test]
fn a_matcher_that_nobody_waits_for_gives_up() {
    let grammar = compiler().compile(&GrammarSource::Regex("[a-z]+".to_owned())).unwrap();
    let mut matcher = grammar.matcher();
    let cancel = matcher.cancel();
    matcher.follow(&ids("ab"));
    assert_eq!(matcher.allowed().unwrap().failure(), None);
    cancel.cancel();
    matcher.follow(&ids("abc"));
    assert!(matcher.allowed().unwrap().failure().is_some());
    // Also where it would begin anew.
    matcher.follow(&ids("x"));
    assert!(matcher.allowed().unwrap().failure().is_some());
    // Others that follow the same grammar go on.
    let mut other = grammar.matcher();
    other.follow(&ids("abc"));
    assert_eq!(other.allowed().unwrap().failure(), None);
}

/// The lexer is a memory that all who follow a grammar share. What one of them finds there changes how long it takes, and not what it finds.
#[test]
fn how_much_others_have_asked_of_a_grammar_decides_nothing() {
    let source = GrammarSource::Regex("(.*a.{30}b|.*c.{50}d).*".to_owned());
    let grammar = compiler().compile(&source).unwrap();
    let mut random = 7u32;
    let mut letter = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u32::from(b'a') + (random >> 24) % 4
    };
    let outputs: Vec<Vec<u32>> = (0..12).map(|_| (0..80).map(|_| letter()).collect()).collect();
    let follow = |grammar: &Grammar, output: &[u32]| -> Vec<Option<String>> {
        let mut matcher = grammar.matcher();
        let at = |at: usize| {
            matcher.follow(&output[..at]);
            matcher.allowed().unwrap().failure().map(str::to_owned)
        };
        (0..output.len()).map(at).collect()
    };
    for output in &outputs {
        let alone = follow(&compiler().compile(&source).unwrap(), output);
        assert_eq!(follow(&grammar, output), alone);
    }
}

/// A tokenizer that was trained on one long line has tokens of thousands of bytes.
#[test]
fn a_token_that_the_trie_has_no_place_for_is_never_allowed() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tokenizers/sentencepiece/tokenizer.json");
    let tokenizer = Tokenizer::from_json(&std::fs::read(&path).unwrap(), &path).unwrap();
    let vocab = tokenizer.vocab_size();
    let long = (0..vocab as u32).filter(|id| tokenizer.token_bytes(*id).len() > 1000).collect::<Vec<_>>();
    assert!(!long.is_empty());
    let compiler = Both::new(&tokenizer, vocab, &[2]).unwrap();
    let grammar = compiler.compile(&GrammarSource::Regex("(?s:.*)".to_owned())).unwrap();
    let mask = grammar.matcher().allowed().unwrap();
    assert!(
        long.iter().all(|id| !mask.allows(*id)) && mask.allows(tokenizer.encode("the", false).unwrap()[0])
    );
}

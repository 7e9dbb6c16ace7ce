//! Scores of prompts against Hugging Face transformers: on the golden models, whose logits transformers has computed
//! (models/tests/golden/make_golden.py), the log-likelihood of every token of the prompt.

use super::*;

/// Tensors of a safetensors file of i64 and f32.
struct Tensors {
    header: Value,
    data: Vec<u8>,
}

impl Tensors {
    fn read(file: &Path) -> Tensors {
        let bytes = std::fs::read(file).unwrap();
        let (length, rest) = bytes.split_at(8);
        let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
        Tensors { header: serde_json::from_slice(&rest[..length]).unwrap(), data: rest[length..].to_vec() }
    }

    fn values<const N: usize, T>(&self, name: &str, of: fn([u8; N]) -> T) -> Vec<T> {
        let offset = |at: usize| self.header[name]["data_offsets"][at].as_u64().unwrap() as usize;
        let bytes = &self.data[offset(0)..offset(1)];
        bytes.chunks_exact(N).map(|bytes| of(bytes.try_into().unwrap())).collect()
    }
}

/// The golden models.
fn cases() -> Vec<String> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden");
    let folders = std::fs::read_dir(golden).unwrap().map(|entry| entry.unwrap());
    let models = folders.filter(|folder| folder.path().join("expected.safetensors").exists());
    models.map(|folder| folder.file_name().into_string().unwrap()).collect()
}

/// The golden model as a folder that can be served: it has no tokenizer, and a prompt of ids needs none.
pub(super) fn folder(test: &str, case: &str) -> std::path::PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(case);
    let folder = std::env::temp_dir().join(format!("faser-{test}-{}-{case}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in std::fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path()) {
        std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    }
    let vocab: serde_json::Map<String, Value> = (0..131).map(|id| (format!("t{id}"), json!(id))).collect();
    let tokenizer = json!({"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"}});
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

#[actix_web::test]
async fn every_token_of_a_prompt_has_the_log_likelihood_of_transformers() {
    let cases = cases();
    assert!(cases.len() >= 10, "{cases:?}");
    for case in &cases {
        let folder = folder("scoring", case);
        let tensors = Tensors::read(&folder.join("expected.safetensors"));
        let ids = tensors.values("tokens", i64::from_le_bytes);
        let logits = tensors.values("logits", f32::from_le_bytes);
        let vocab = logits.len() / ids.len();
        let yaml = format!(
            "model: {{name: pair, target: {}, draft: none, dtype: f32}}\nscheduler: {{max_context: 64}}\n",
            folder.display()
        );
        let (app, served) = daemon_of(&yaml, None).await;
        std::fs::remove_dir_all(&folder).unwrap();
        let client = client!(app);
        let body = json!({"prompt": ids, "max_tokens": 0, "echo": true, "logprobs": 1});
        let answer = ok!(client, "/v1/completions", body);
        let told = &answer["choices"][0]["logprobs"]["token_logprobs"];
        let mut worst = 0.0f64;
        for (position, &id) in ids.iter().enumerate().skip(1) {
            let row = &logits[(position - 1) * vocab..][..vocab];
            let normaliser = row.iter().map(|&z| f64::from(z).exp()).sum::<f64>().ln();
            let expected = f64::from(row[id as usize]) - normaliser;
            worst = worst.max((told[position].as_f64().unwrap() - expected).abs());
        }
        println!("{case}: {} tokens, {worst:.1e} off at most", ids.len());
        assert!(worst < 1e-3, "{case}: {worst}");
        served.service.clone().stop().await;
    }
}

#[actix_web::test]
async fn places_are_counted_in_the_text_that_is_told_where_a_prompt_decodes_to_something_else() {
    let folder = folder("places", "qwen3-tied");
    let vocab: serde_json::Map<String, Value> = (0..130).map(|id| (format!("▁t{id}"), json!(id))).collect();
    let spaces = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let tokenizer = json!({"version": "1.0", "pre_tokenizer": spaces, "decoder": spaces,
        "added_tokens": [{"id": 130, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "▁t0"}});
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let yaml = format!("model: {{name: pair, target: {}, draft: none, dtype: f32}}\n", folder.display());
    let (app, served) = daemon_of(&yaml, None).await;
    std::fs::remove_dir_all(&folder).unwrap();
    let client = client!(app);
    let prompts = [("t5 t6", "t5 t6"), (" t5  t6", "t5 t0 t6"), ("t5</s>t6", "t5 t6"), ("</s>", "")];
    for (prompt, decoded) in prompts {
        let body = json!({"prompt": prompt, "max_tokens": 4, "echo": true, "logprobs": 1, "temperature": 0, "ignore_eos": true,
            "return_token_ids": true});
        let answer = ok!(client, "/v1/completions", body);
        let (text, told) = (text_of(&answer), &answer["choices"][0]["logprobs"]);
        let ids = answer["choices"][0]["prompt_token_ids"].as_array().unwrap().len();
        let offsets: Vec<usize> = told["text_offset"]
            .as_array()
            .unwrap()
            .iter()
            .map(|place| place.as_u64().unwrap() as usize)
            .collect();
        println!("{prompt:?}: {text:?} {offsets:?} {}", told["tokens"]);
        assert_eq!(offsets[ids], decoded.len(), "{prompt:?}: {text:?}");
        assert_eq!(&text[..offsets[ids]], decoded);
        // What stands from one place to the next is the token; the first of a text has no space before it.
        for (place, token) in told["tokens"].as_array().unwrap().iter().enumerate() {
            let end = offsets.get(place + 1).copied().unwrap_or(text.len());
            let (shown, token) = (&text[offsets[place]..end], token.as_str().unwrap());
            let of_the_text = if token == "</s>" { "" } else { token };
            let first = offsets[place] == 0;
            assert!(
                shown == of_the_text || first && shown == of_the_text.trim_start(),
                "{prompt:?}, {place}: {shown:?} {token:?}"
            );
        }
        let (_, bare) = post!(client, "/v1/completions", with(&body, &json!({"logprobs": null})));
        let output = &text[offsets[ids]..];
        assert_eq!(text_of(&bare), format!("{prompt}{output}"), "as it was sent");
        let (_, sent) = post!(client, "/v1/completions", with(&body, &json!({"stream": true})));
        assert_eq!(streamed(&events(&sent), 0), (text.to_owned(), told.clone()));
    }
    served.service.clone().stop().await;
}

//! Greedy texts against Hugging Face transformers (models/tests/golden/make_greedy.py), served with drafts that are not made for them: with
//! a shorter context, and proposals that are seldom right.

use super::scoring::folder;
use super::*;

#[actix_web::test]
async fn greedy_texts_are_those_of_transformers_whatever_drafts() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden/greedy.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(golden).unwrap()).unwrap();
    let draft = folder("greedy", "qwen3-tied");
    let config = draft.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let shorter = text.replace("\"max_position_embeddings\": 64", "\"max_position_embeddings\": 20");
    assert_ne!(shorter, text);
    std::fs::write(config, shorter).unwrap();
    for (case, expected) in golden.as_object().unwrap() {
        let target = folder("greedy", expected["folder"].as_str().unwrap_or(case));
        let context = expected["context"].as_u64().unwrap_or(64);
        for policy in ["off", "fixed:4"] {
            let yaml = format!(
                "model: {{name: pair, target: {}, draft: {}, dtype: f32}}\nspeculation: {{policy: '{policy}'}}\n\
                 scheduler: {{max_context: {context}}}\n",
                target.display(),
                draft.display()
            );
            let (app, served) = daemon_of(&yaml, None).await;
            assert_eq!(served.max_context as u64, context, "the target's, or less of it");
            let client = client!(app);
            let most = expected["output"].as_array().unwrap().len();
            let body = json!({"prompt": expected["prompt"], "max_tokens": most, "temperature": 0, "ignore_eos": true,
                "return_token_ids": true, "include_metrics": true});
            let answer = ok!(client, "/v1/completions", body);
            assert_eq!(answer["choices"][0]["token_ids"], expected["output"], "{case}, {policy}");
            served.service.clone().stop().await;
        }
        std::fs::remove_dir_all(target).unwrap();
    }
    std::fs::remove_dir_all(draft).unwrap();
}

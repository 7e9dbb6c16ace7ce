//! The load generator against a small server that answers like one of OpenAI's, with known times.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_web::{App, HttpResponse, HttpServer, rt, web};
use faser_bench::{BenchError, BenchSpec, KMax, Progress, Prompts, run};
use serde_json::{Value, json};

/// What the server saw.
#[derive(Default)]
struct Seen {
    in_flight: usize,
    most_in_flight: usize,
    k_max: BTreeSet<String>,
    models: BTreeSet<String>,
}

const GAP: Duration = Duration::from_millis(20);

async fn completions(seen: web::Data<Arc<Mutex<Seen>>>, body: web::Json<Value>) -> HttpResponse {
    if body["prompt"] == "refuse me" {
        return HttpResponse::BadRequest().json(json!({"error": {"message": "prompt refused"}}));
    }
    {
        let mut seen = seen.lock().expect("no handler panicked");
        seen.in_flight += 1;
        seen.most_in_flight = seen.most_in_flight.max(seen.in_flight);
        seen.k_max.insert(body["speculation"]["k_max"].to_string());
        seen.models.insert(body["model"].to_string());
    }
    let seen = seen.get_ref().clone();
    let stream = futures_util::stream::unfold(0, move |step: usize| {
        let seen = seen.clone();
        async move {
            rt::time::sleep(GAP).await;
            let event = match step {
                0..3 => json!({"choices": [{"index": 0, "text": "ab"}]}).to_string(),
                3 => {
                    json!({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 6}}).to_string()
                }
                4 => {
                    seen.lock().expect("no handler panicked").in_flight -= 1;
                    "[DONE]".to_owned()
                }
                _ => return None,
            };
            Some((Ok::<_, actix_web::Error>(web::Bytes::from(format!("data: {event}\n\n"))), step + 1))
        }
    });
    HttpResponse::Ok().content_type("text/event-stream").streaming(Box::pin(stream))
}

async fn models() -> HttpResponse {
    HttpResponse::Ok().json(json!({"object": "list", "data": [{"id": "fake"}]}))
}

fn serve() -> (String, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let data = web::Data::new(seen.clone());
    let server = HttpServer::new(move || {
        App::new()
            .app_data(data.clone())
            .route("/v1/models", web::get().to(models))
            .route("/v1/completions", web::post().to(completions))
    })
    .workers(1)
    .bind(("127.0.0.1", 0))
    .expect("a free port");
    let url = format!("http://{}", server.addrs()[0]);
    rt::spawn(server.run());
    (url, seen)
}

#[actix_web::test]
async fn measures_what_the_server_does() {
    let (url, seen) = serve();
    let spec = BenchSpec {
        concurrency: vec![1, 4],
        k: vec![KMax::AtMost(0), KMax::ServerDefault],
        requests: 8,
        prompts: Prompts::Synthetic { count: 2, length: 2, first_id: 1, end_id: 9, seed: 3 },
        ..BenchSpec::new(url)
    };
    let mut finished = 0;
    let mut requests = 0;
    let report = run(&spec, &mut |progress| match progress {
        Progress::RunFinished(run) => finished += usize::from(run.failed == 0),
        Progress::RequestDone { .. } => requests += 1,
        _ => {}
    })
    .await
    .unwrap();
    assert_eq!((finished, requests, report.runs.len(), report.cells.len()), (4, 32, 4, 4));
    let seen = seen.lock().expect("no handler panicked");
    assert_eq!(seen.most_in_flight, 4);
    assert_eq!(seen.k_max.iter().map(String::as_str).collect::<Vec<_>>(), ["0", "null"]);
    assert_eq!(seen.models.iter().map(String::as_str).collect::<Vec<_>>(), ["\"fake\""]);
    for run in &report.runs {
        assert_eq!((run.output_tokens, run.prompt_tokens), (8 * 6, 8 * 2));
        // Three texts 20 ms apart, two tokens each: sleeping is never shorter than asked for.
        assert!(run.ttft.median_ms >= 20.0 && run.itl.median_ms >= 15.0, "{run:?}");
        assert!(run.tpot.median_ms >= 40.0 / 5.0 * 0.9, "{run:?}");
        let least_wall = 8.0 / run.concurrency as f64 * 0.1;
        assert!(run.wall_s >= least_wall * 0.9, "{run:?}");
    }
    assert!(report.cells[2].output_tokens_per_s > 1.5 * report.cells[0].output_tokens_per_s);
    assert_eq!(report.differing_texts, 0);
}

#[actix_web::test]
async fn refusals_are_counted_and_a_run_of_refusals_is_an_error() {
    let (url, _) = serve();
    let dir = std::env::temp_dir().join(format!("faser-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("prompts.json");
    std::fs::write(&file, r#"["refuse me", "take me"]"#).unwrap();
    let spec = BenchSpec {
        requests: 4,
        warm_up: false,
        prompts: Prompts::File(file.clone()),
        ..BenchSpec::new(url)
    };
    let report = run(&spec, &mut |_| ()).await.unwrap();
    assert_eq!((report.runs[0].failed, report.runs[0].output_tokens), (2, 12));
    assert!(report.runs[0].first_failure.as_ref().is_some_and(|why| why.contains("prompt refused")));
    std::fs::write(&file, r#"["refuse me"]"#).unwrap();
    let error = run(&spec, &mut |_| ()).await.unwrap_err();
    assert!(matches!(error, BenchError::AllFailed { .. }), "{error}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[actix_web::test]
async fn a_server_that_is_not_there_is_named() {
    let error = run(&BenchSpec::new("http://127.0.0.1:9"), &mut |_| ()).await.unwrap_err().to_string();
    assert!(error.contains("http://127.0.0.1:9") && error.contains("running"), "{error}");
}

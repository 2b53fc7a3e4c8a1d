"""Live-seq: selection on the real sample table, the rest on simulated counts."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import io
import os
import urllib.error
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import Ridge

from mongefit.datasets._live_seq import find_live_seq, read_live_seq, simulate_live_seq, sources
from mongefit.datasets._live_seq.preprocessing import (
    loess,
    log_normalise,
    principal_components,
    scale,
    standardised_variance,
)
from mongefit.datasets._live_seq.samples import select_samples
from mongefit.errors import DataError, OptionError

REAL_TABLE = Path(__file__).parents[3] / "shared" / "data" / "live_seq_metadata.csv"

needs_table = pytest.mark.skipif(
    not REAL_TABLE.is_file(), reason=f"the sample table of Live-seq is not at {REAL_TABLE}"
)

COLUMNS = [
    *("", "nCount_RNA", "nFeature_RNA", "percent.mt", "Cell_type", "sampling_type", "treatment"),
    *("double_extraction", "input.reads", "uniquely.mapped", "sample_ID"),
]


def sample_rows():
    """A table like the real one: 12 samples before, 8 after, 3 cells in both, and others."""
    rng = np.random.default_rng(0)
    kinds = [("ASPC", "not_treated")] * 12 + [("ASPC", "DMIR_treated")] * 8
    kinds += [("IBA", "not_treated")] * 2 + [("Raw264.7_G9", "LPS_treated")] * 2
    cells = {0: "1_21", 1: "2_22", 2: "3_23", 3: "4_24", 13: "3_23", 14: "1_21", 16: "2_22"}
    rows = []
    for number, (cell_type, treatment) in enumerate(kinds):
        reads = int(rng.integers(100_000, 200_000))
        rows.append(
            {
                "": f"exp_{number}",
                "nCount_RNA": reads,
                "nFeature_RNA": int(rng.integers(3000, 6000)),
                "percent.mt": 5.5,
                "Cell_type": cell_type,
                "sampling_type": "Live_seq" if number in cells or number % 2 else "scRNA",
                "treatment": treatment,
                "double_extraction": cells.get(number, "" if number % 2 else "NA"),
                "input.reads": 2 * reads,
                "uniquely.mapped": reads,
                "sample_ID": f"sample{number + 1}",
            }
        )
    return rows


def write_table(path, rows, columns=COLUMNS):
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(
            stream, columns, quoting=csv.QUOTE_NONNUMERIC, extrasaction="ignore"
        )
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small sample table and simulated counts for it."""
    folder = tmp_path_factory.mktemp("live_seq")
    table = write_table(folder / "meta.final.csv", sample_rows())
    counts = folder / "counts.csv.gz"
    simulate_live_seq(table, counts)
    return counts, table


@pytest.fixture(scope="module")
def data(files):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_live_seq(*files)


@pytest.fixture
def lines(files):
    """The lines of a short counts file with all samples, to be spoilt."""
    return gzip.decompress(files[0].read_bytes()).decode().splitlines()[:1001]


def write_counts(path, lines):
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return path


def set_cell(lines, line, column, text):
    cells = lines[line - 1].split(",")
    cells[column] = text
    lines[line - 1] = ",".join(cells)


@needs_table
def test_published_table_gives_the_published_numbers():
    selection = select_samples(REAL_TABLE)
    assert len(selection.source) == 121
    assert len(selection.target) == 72
    assert selection.rows == 1012
    assert selection.rejected == 0
    assert sum(sample.live for sample in selection.source) == 61
    assert sum(sample.live for sample in selection.target) == 37


@needs_table
def test_published_table_gives_the_traced_cells():
    selection = select_samples(REAL_TABLE)
    traced = [
        (selection.source[row].name, selection.target[column].name)
        for row, column in selection.pairs
    ]
    assert sorted(traced) == [
        ("sample741", "sample801"),
        ("sample757", "sample746"),
        ("sample759", "sample732"),
        ("sample770", "sample765"),
        ("sample774", "sample802"),
        ("sample783", "sample843"),
        ("sample789", "sample767"),
        ("sample820", "sample839"),
        ("sample821", "sample788"),
    ]
    assert all(selection.source[row].live for row in selection.pairs[:, 0])


@needs_table
def test_published_table_is_the_one_to_download():
    assert hashlib.sha256(REAL_TABLE.read_bytes()).hexdigest() == sources.SAMPLES.sha256


@needs_table
def test_published_table_with_simulated_counts(tmp_path):
    counts = tmp_path / "counts.csv.gz"
    simulate_live_seq(REAL_TABLE, counts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_live_seq(counts, REAL_TABLE)
    assert found.source.shape == (121, 10)
    assert found.target.shape == (72, 10)
    assert found.pairs.shape == (9, 2)
    assert found.simulated
    x, y = found.source[found.pairs[:, 0]], found.target[found.pairs[:, 1]]
    ridge, mean = (
        np.concatenate(
            [
                y[[i]] - model.fit(np.delete(x, i, 0), np.delete(y, i, 0)).predict(x[[i]])
                for i in range(9)
            ]
        )
        for model in (Ridge(100.0), DummyRegressor())
    )
    assert np.sum(ridge**2) < 0.7 * np.sum(mean**2)  # the traced cells tell something of others


def test_selection(files):
    selection = select_samples(files[1])
    assert [sample.name for sample in selection.source] == [f"sample{i}" for i in range(1, 13)]
    assert [sample.name for sample in selection.target] == [f"sample{i}" for i in range(13, 21)]
    np.testing.assert_array_equal(selection.pairs, [[0, 2], [1, 4], [2, 1]])
    assert selection.source[3].cell == "4_24"
    assert selection.source[4].cell == selection.source[5].cell == ""


@pytest.mark.parametrize(
    ("column", "value"), [("nFeature_RNA", 1000), ("percent.mt", 30), ("uniquely.mapped", 3)]
)
def test_limits_of_the_study(tmp_path, column, value):
    rows = sample_rows()
    rows[5][column] = value
    selection = select_samples(write_table(tmp_path / "meta.csv", rows))
    assert selection.rejected == 1
    assert "sample6" not in [sample.name for sample in selection.source]


def test_table_without_cells_or_pairs(tmp_path):
    rows = [row for row in sample_rows() if row["treatment"] != "DMIR_treated"]
    with pytest.raises(DataError, match="no sample with Cell_type ASPC and treatment DMIR_treated"):
        select_samples(write_table(tmp_path / "half.csv", rows))
    rows = [{**row, "double_extraction": ""} for row in sample_rows()]
    with pytest.raises(DataError, match=r"no cell that was sampled before and after.*12.*8"):
        select_samples(write_table(tmp_path / "unpaired.csv", rows))


def test_bad_tables(tmp_path):
    rows = sample_rows()
    path = write_table(tmp_path / "a.csv", rows, [name for name in COLUMNS if name != "treatment"])
    with pytest.raises(DataError, match="no column 'treatment'"):
        select_samples(path)
    rows[3]["sample_ID"] = "sample1"
    with pytest.raises(DataError, match="lines 2 and 5 have the same sample_ID 'sample1'"):
        select_samples(write_table(tmp_path / "b.csv", rows))
    rows = sample_rows()
    rows[3]["double_extraction"] = "1_21"
    with pytest.raises(DataError, match="sample1 and sample4 have the same double_extraction"):
        select_samples(write_table(tmp_path / "c.csv", rows))
    rows = sample_rows()
    rows[1]["percent.mt"] = "NA"
    with pytest.raises(DataError, match=r"line 3, column percent\.mt: 'NA' is not a number"):
        select_samples(write_table(tmp_path / "d.csv", rows))
    path = write_table(tmp_path / "e.csv", sample_rows())
    path.write_text(path.read_text() + '"exp_99",1\n')
    with pytest.raises(DataError, match="line 26 has 2 cells; the header has 11"):
        select_samples(path)
    with pytest.raises(DataError, match="not found"):
        select_samples(tmp_path / "none.csv")
    with pytest.raises(DataError, match="is a folder"):
        select_samples(tmp_path)


def test_shapes_and_names(data):
    assert data.source.shape == (12, 10)
    assert data.target.shape == (8, 10)
    assert data.source.dtype == data.target.dtype == np.float64
    assert data.pairs.dtype == np.int64
    assert data.source_names == tuple(f"sample{i}" for i in range(1, 13))
    assert data.target_names == tuple(f"sample{i}" for i in range(13, 21))
    assert len(data.genes) == 500
    assert data.loadings.shape == (10, 500)
    assert data.explained_variance_ratio.shape == (10,)
    assert np.all(np.diff(data.explained_variance_ratio) <= 0)


def test_simulated_is_said_by_the_file(files, data, tmp_path, lines):
    assert data.simulated
    assert "SIMULATED" in data.steps[0]
    assert all(gene.startswith("SIMULATED_") for gene in data.genes)
    assert data.sha256 == hashlib.sha256(files[0].read_bytes()).hexdigest()
    renamed = [line.replace("SIMULATED_", "ENSMUSG") for line in lines]
    path = write_counts(tmp_path / "counts.csv.gz", renamed)
    with pytest.warns(UserWarning):
        found = read_live_seq(path, files[1])
    assert not found.simulated
    assert not any("SIMULATED" in step for step in found.steps)


def test_simulation_is_determined_by_its_seed(files, tmp_path):
    counts, table = files
    simulate_live_seq(table, tmp_path / "again.csv.gz", seed=0)
    simulate_live_seq(table, tmp_path / "other.csv.gz", seed=1)
    assert (tmp_path / "again.csv.gz").read_bytes() == counts.read_bytes()
    assert (tmp_path / "other.csv.gz").read_bytes() != counts.read_bytes()
    with pytest.raises(FileExistsError):
        simulate_live_seq(table, tmp_path / "again.csv.gz")
    simulate_live_seq(table, tmp_path / "again.csv.gz", seed=1, overwrite=True)
    with pytest.raises(OptionError, match="seed"):
        simulate_live_seq(table, tmp_path / "bad.csv.gz", seed=-1)


def test_simulation_has_the_format_of_geo_and_the_sizes_of_the_table(files):
    text = gzip.decompress(files[0].read_bytes()).decode()
    header, *rows = text.splitlines()
    assert header.split(",") == ['""', *(f'"sample{i}"' for i in range(1, 21))]
    assert rows[0].startswith('"SIMULATED_00001",')
    counts = np.array([row.split(",")[1:] for row in rows], dtype=int)
    expected = sample_rows()[:20]
    assert counts.sum(axis=0).tolist() == [row["nCount_RNA"] for row in expected]
    assert np.count_nonzero(counts, axis=0).tolist() == [row["nFeature_RNA"] for row in expected]


def test_simulation_needs_room_for_the_genes(tmp_path):
    rows = sample_rows()
    rows[0]["nFeature_RNA"] = 20_000
    table = write_table(tmp_path / "meta.csv", rows)
    with pytest.raises(DataError, match="sample1 has 20000 genes"):
        simulate_live_seq(table, tmp_path / "counts.csv.gz")
    assert not (tmp_path / "counts.csv.gz").exists()


def test_pipeline_step_by_step(files, data):
    """The whole of `read_live_seq` again, with scikit-learn for the components."""
    rows = gzip.decompress(files[0].read_bytes()).decode().splitlines()[1:]
    counts = np.array([row.split(",")[1:] for row in rows], dtype=float)
    kept = np.count_nonzero(counts, axis=1) >= 2
    names = np.array([row.split(",")[0].strip('"') for row in rows])[kept]
    order = np.argsort(-standardised_variance(counts[kept]), kind="stable")[:500]
    assert tuple(names[order]) == data.genes
    levels = np.log1p(1e4 * counts / counts[kept].sum(axis=0))[kept][order]
    scaled = (levels.T - levels.mean(axis=1)) / levels.std(axis=1, ddof=1)
    assert scaled.max() < 10  # so that both centre alike
    pca = PCA(10, svd_solver="full").fit(scaled)
    scores = pca.transform(scaled)
    ours = np.concatenate([data.source, data.target])
    np.testing.assert_allclose(ours, scores * np.sign(np.sum(ours * scores, axis=0)), atol=1e-8)
    np.testing.assert_allclose(data.explained_variance_ratio, pca.explained_variance_ratio_)
    np.testing.assert_allclose(ours, scaled @ data.loadings.T, atol=1e-8)


def test_other_numbers_of_components(files, data):
    three = read_live_seq(*files, n_components=3)
    np.testing.assert_allclose(three.source, data.source[:, :3])
    with pytest.raises(OptionError, match="n_components must be at most 20 here, got 21"):
        read_live_seq(*files, n_components=21)
    with pytest.raises(OptionError, match="n_components"):
        read_live_seq(*files, n_components=0)


def test_loess_against_direct_fits():
    rng = np.random.default_rng(0)
    x = np.sort(rng.normal(size=400))
    y = np.sin(2 * x) + 0.1 * rng.normal(size=400)
    fitted = loess(x, y, span=0.3)
    for i in range(0, 400, 37):
        distance = np.abs(x - x[i])
        width = np.sort(distance)[119]
        weight = np.clip(1 - (distance / width) ** 3, 0, None) ** 1.5
        direct = np.polyval(np.polyfit(x - x[i], y, 2, w=weight), 0.0)
        assert fitted[i] == pytest.approx(direct, abs=2e-3)
    np.testing.assert_allclose(loess(x, 1 - x + x**2, span=0.3), 1 - x + x**2, atol=1e-9)


def test_standardised_variance_by_its_definition():
    rng = np.random.default_rng(0)
    mean = np.exp(rng.normal(1, 1.5, size=300))
    counts = rng.negative_binomial(2, 2 / (2 + mean[:, None]), size=(300, 25)).astype(float)
    counts[0] = 7.0
    counts[1, 0] = 1e4
    found = standardised_variance(counts)
    assert found[0] == 0
    varied = counts.var(axis=1) > 0
    log_mean, log_variance = (
        np.log10(counts[varied].mean(axis=1)),
        np.log10(counts[varied].var(axis=1, ddof=1)),
    )
    sigma = 10 ** (loess(log_mean, log_variance, span=0.3) / 2)
    for gene, expected in zip(np.flatnonzero(varied), sigma, strict=True):
        deviation = np.minimum((counts[gene] - counts[gene].mean()) / expected, 5.0)
        assert found[gene] == pytest.approx(np.sum(deviation**2) / 24)


def test_log_normalisation():
    levels = log_normalise(np.array([[1.0, 0.0], [3.0, 5.0]]))
    np.testing.assert_allclose(levels, np.log([[2501, 1], [7501, 10001]]))


def test_scaling_and_components():
    levels = np.zeros((3, 200))
    levels[0, 0] = 1.0
    levels[1] = np.arange(200)
    levels[2] = 4.0
    scaled = scale(levels)
    assert scaled[0, 0] == 10  # without the limit √199
    np.testing.assert_allclose([scaled[1].mean(), scaled[1].std(ddof=1)], [0, 1], atol=1e-12)
    np.testing.assert_array_equal(scaled[2], 0)
    scores, loadings, shares = principal_components(scaled, 2)
    np.testing.assert_allclose(scores @ loadings, scaled.T, atol=1e-10)
    assert shares.sum() == pytest.approx(1)
    assert np.all(loadings.max(axis=1) == np.abs(loadings).max(axis=1))


def test_columns_are_found_by_name(files, data, tmp_path):
    """Samples in another order, and others among them, as in GEO's file."""
    rows = gzip.decompress(files[0].read_bytes()).decode().splitlines()
    order = np.random.default_rng(0).permutation(20) + 1
    shuffled = []
    for i, row in enumerate(rows):
        cells = row.split(",")
        other = '"sample23"' if i == 0 else "0"
        shuffled.append(",".join([cells[0], other, *(cells[j] for j in order)]))
    found = read_live_seq(write_counts(tmp_path / "counts.csv.gz", shuffled), files[1])
    np.testing.assert_array_equal(found.source, data.source)
    assert "the file's 21 samples" in found.steps[3]


def test_numbers_as_r_writes_them(files, tmp_path, lines):
    set_cell(lines, 5, 3, "100000")
    plain = write_counts(tmp_path / "plain.csv.gz", lines)
    set_cell(lines, 5, 3, "1e+05")
    short = write_counts(tmp_path / "short.csv.gz", lines)
    unzipped = tmp_path / "windows.csv"
    unzipped.write_bytes(b"\xef\xbb\xbf" + ("\r\n".join(lines) + "\r\n").encode())
    found = []
    for path in (plain, short, unzipped):
        with pytest.warns(UserWarning):
            found.append(read_live_seq(path, files[1]).source)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("text", ["2.5", "-1", "NA", "", "x", "nan", "inf", "9" * 30, "1_0", "٣"])
def test_bad_number_is_named(files, tmp_path, lines, text):
    set_cell(lines, 7, 4, text)
    path = write_counts(tmp_path / "counts.csv.gz", lines)
    with pytest.raises(DataError, match=f"line 7, column sample4: '{text}' is not a whole number"):
        read_live_seq(path, files[1])


def test_missing_sample(files, tmp_path, lines):
    lines[0] = lines[0].replace('"sample2"', '"sample_2"').replace('"sample13"', '"other"')
    path = write_counts(tmp_path / "counts.csv.gz", lines)
    with pytest.raises(
        DataError, match=r"lacks 2 of the 20 samples \(first: 'sample2'\).*GSE141064"
    ):
        read_live_seq(path, files[1])


def test_damaged_counts(files, tmp_path, lines):
    counts, table = files
    path = tmp_path / "counts.csv.gz"
    whole = counts.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="damaged or incomplete"):
        read_live_seq(path, table)
    path.write_bytes(whole[:-8] + b"\0" * 8)
    with pytest.raises(DataError, match="damaged or incomplete"):
        read_live_seq(path, table)
    path.write_bytes(b"\xff\xfe" * 50)
    with pytest.raises(DataError, match="is not text"):
        read_live_seq(path, table)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="lacks 20 of the 20 samples"):
        read_live_seq(path, table)
    with pytest.raises(DataError, match="has no gene"):
        read_live_seq(write_counts(path, lines[:1]), table)
    with pytest.raises(DataError, match="not found"):
        read_live_seq(tmp_path / "none.csv.gz", table)
    with pytest.raises(DataError, match="line 3 has 20 cells; the header has 21"):
        read_live_seq(write_counts(path, [*lines[:2], lines[2].rsplit(",", 1)[0]]), table)
    with pytest.raises(DataError, match="more than one column 'sample1'"):
        read_live_seq(write_counts(path, [lines[0].replace("sample2", "sample1")]), table)
    with pytest.raises(DataError, match="lines 4 and 9 have the same gene SIMULATED_00003"):
        read_live_seq(write_counts(path, [*lines[:8], lines[3]]), table)


def test_bomb(files, monkeypatch):
    monkeypatch.setattr("mongefit.datasets._live_seq.counts._MAX_TEXT", 10_000)
    with pytest.raises(DataError, match="unpacks to more than"):
        read_live_seq(files[0], files[1])
    monkeypatch.undo()
    monkeypatch.setattr("mongefit.datasets._live_seq.counts._MAX_LINE", 50)
    with pytest.raises(DataError, match="has a line of more"):
        read_live_seq(files[0], files[1])


def test_counts_that_do_not_fit_the_table(files, tmp_path):
    rows = sample_rows()
    rows[7]["nCount_RNA"] *= 3
    rows[7]["input.reads"] *= 3
    rows[7]["uniquely.mapped"] *= 3
    table = write_table(tmp_path / "meta.csv", rows)
    with pytest.warns(UserWarning, match=r"nCount_RNA .* for 1 of 20 samples; worst is sample8"):
        read_live_seq(files[0], table)


def test_genes_that_the_study_left_out(files, tmp_path, lines):
    names = [f"ENSMUSG{i:05d}" for i in range(1, 1001)]
    renamed = [lines[0]]
    for name, line in zip(names, lines[1:], strict=True):
        renamed.append(f'"{name}",{line.split(",", 1)[1]}')
    counts = write_counts(tmp_path / "counts.csv.gz", renamed)
    table = write_table(tmp_path / "meta.final.csv", sample_rows())
    with pytest.warns(UserWarning) as caught:
        everything = read_live_seq(counts, table)
    told = " ".join(str(warning.message) for warning in caught)
    assert sources.ANNOTATION.url in told
    assert sources.BLACKLIST.url in told
    assert sum(step.startswith("Not left out") for step in everything.steps) == 2

    common = [gene for gene in everything.genes if gene in names][:3]
    (tmp_path / sources.BLACKLIST.name).write_text(f'"","a","b"\n"{common[0]}",0,1\n"none",1,0\n')
    (tmp_path / sources.ANNOTATION.name).write_text(
        f"Ensembl\tName\tBiotype\n{common[1]}\tRps6\tx\n{common[2]}\tNrpl\tx\nnone\tRpl3\tx\n"
    )
    with pytest.warns(UserWarning) as caught:
        reduced = read_live_seq(counts, table)
    assert not any("not left out" in str(warning.message) for warning in caught)
    assert common[0] not in reduced.genes
    assert common[1] not in reduced.genes
    assert common[2] in reduced.genes
    assert sum(step.startswith("1 genes were left out") for step in reduced.steps) == 2
    with pytest.raises(DataError, match="not found"), pytest.warns(UserWarning):
        read_live_seq(counts, table, annotation=tmp_path / "none.txt")
    with pytest.raises(DataError, match="is not a table"), pytest.warns(UserWarning):
        read_live_seq(counts, table, annotation=tmp_path / sources.BLACKLIST.name)


class Response(io.BytesIO):
    """What urlopen gives."""

    def __init__(self, data, url="https://example.org", length=None):
        super().__init__(data)
        self.headers = {"Content-Length": str(len(data) if length is None else length)}
        self.url = url

    def geturl(self):
        return self.url


@pytest.fixture
def network(files, monkeypatch):
    """A network that has the files of the fixture; records the addresses asked for."""
    contents = {
        sources.COUNTS.url: files[0].read_bytes(),
        sources.SAMPLES.url: files[1].read_bytes(),
        sources.ANNOTATION.url: b"Ensembl\tName\n",
        sources.BLACKLIST.url: b'"","a"\n',
    }
    digest = hashlib.sha256(contents[sources.SAMPLES.url]).hexdigest()
    table = dataclasses.replace(sources.SAMPLES, sha256=digest)
    monkeypatch.setattr(sources, "SAMPLES", table)
    asked = []

    def urlopen(request, *, timeout, context):
        assert timeout > 0
        assert context.check_hostname
        asked.append(request.full_url)
        found = contents[request.full_url]
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, Response) else Response(found)

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return contents, asked


@pytest.fixture
def no_network(monkeypatch):
    def urlopen(*args, **kwargs):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)


def test_addresses_are_encrypted():
    for source in (sources.COUNTS, sources.SAMPLES, sources.ANNOTATION, sources.BLACKLIST):
        assert source.url.startswith("https://")
        assert source.url.endswith(source.name)


def test_without_network_the_message_says_what_to_do(tmp_path, no_network):
    with pytest.raises(DataError) as caught:
        find_live_seq(folder=tmp_path / "cache")
    message = str(caught.value)
    for part in (
        "GSE141064_count.final.csv.gz",
        "meta.final.csv",
        "accession GSE141064",
        sources.COUNTS.url,
        sources.SAMPLES.url,
        str(tmp_path / "cache"),
        "--counts",
        "--samples",
        "Name or service not known",
    ):
        assert part in message
    assert not (tmp_path / "cache").exists()


def test_only_what_is_missing_is_asked_for(files, tmp_path, no_network):
    with pytest.raises(DataError) as caught:
        find_live_seq(samples=files[1], folder=tmp_path, download=False)
    assert sources.COUNTS.url in str(caught.value)
    assert sources.SAMPLES.url not in str(caught.value)
    assert "turned off" in str(caught.value)


def test_local_files(files, tmp_path, no_network):
    assert find_live_seq(*files) == files
    assert find_live_seq(*map(str, files), folder=tmp_path, download=False) == files
    with pytest.raises(DataError, match="not found"):
        find_live_seq(counts=tmp_path / "none.csv.gz", samples=files[1])
    with pytest.raises(DataError, match="is a folder"):
        find_live_seq(counts=tmp_path, samples=files[1])


def test_download_and_cache(files, tmp_path, network, monkeypatch):
    _, asked = network
    with pytest.warns(UserWarning, match="not .* that is on record"):
        counts, table = find_live_seq(folder=tmp_path / "a" / "b")
    assert counts.read_bytes() == files[0].read_bytes()
    assert table.read_bytes() == files[1].read_bytes()
    assert len(asked) == 4
    assert sorted(path.name for path in counts.parent.iterdir()) == sorted(
        name + suffix
        for name in (
            sources.COUNTS.name,
            sources.SAMPLES.name,
            sources.ANNOTATION.name,
            sources.BLACKLIST.name,
        )
        for suffix in ("", ".sha256")
    )
    assert find_live_seq(folder=tmp_path / "a" / "b") == (counts, table)
    assert len(asked) == 4
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.warns(UserWarning):
        counts, _ = find_live_seq()
    assert counts.parent == tmp_path / "cache" / "mongefit" / "live-seq"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.warns(UserWarning):
        counts, _ = find_live_seq()
    assert counts.parent == tmp_path / "home" / ".cache" / "mongefit" / "live-seq"


def test_changed_cache(tmp_path, network):
    with pytest.warns(UserWarning):
        counts, _ = find_live_seq(folder=tmp_path)
    with open(counts, "ab") as stream:
        stream.write(b"\0")
    with pytest.raises(DataError, match=r"is not what was downloaded.*\.sha256. Delete both"):
        find_live_seq(folder=tmp_path)
    counts.with_name(counts.name + ".sha256").unlink()
    assert find_live_seq(folder=tmp_path)[0] == counts


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"<html>Log in</html>", "not a complete gzip file"),
        (gzip.compress(b"a,b\n" * 99, mtime=0)[:-9], "not a complete gzip file"),
        (Response(b"", length=5), "broke off after 0 of 5 bytes"),
        (Response(b"", url="http://example.org"), "without encryption"),
        (TimeoutError("timed out"), "timed out"),
    ],
    ids=["page", "cut off", "empty", "plain", "slow"],
)
def test_bad_downloads_leave_nothing(tmp_path, network, answer, told):
    contents, _ = network
    contents[sources.COUNTS.url] = answer
    with pytest.raises(DataError, match=told):
        find_live_seq(folder=tmp_path)
    assert not os.listdir(tmp_path)


def test_large_download_is_refused(tmp_path, network, monkeypatch):
    small = dataclasses.replace(sources.COUNTS, max_bytes=100)
    monkeypatch.setattr(sources, "COUNTS", small)
    with pytest.raises(DataError, match="is larger than"):
        find_live_seq(folder=tmp_path)
    assert not os.listdir(tmp_path)


def test_altered_table_is_refused(tmp_path, network):
    contents, _ = network
    contents[sources.SAMPLES.url] += b"\n"
    with (
        pytest.warns(UserWarning),
        pytest.raises(DataError, match="may have been altered") as caught,
    ):
        find_live_seq(folder=tmp_path)
    assert sources.COUNTS.url not in str(caught.value)
    assert not (tmp_path / "meta.final.csv").exists()


def test_gene_tables_may_be_missing(tmp_path, network):
    contents, _ = network
    contents[sources.BLACKLIST.url] = urllib.error.URLError("gone")
    with pytest.warns(UserWarning) as caught:
        counts, table = find_live_seq(folder=tmp_path)
    assert "gene.blacklist.csv could not be downloaded" in str(caught[-1].message)
    assert counts.exists()
    assert table.exists()
    assert sources.ANNOTATION.name in os.listdir(tmp_path)
    assert sources.BLACKLIST.name not in os.listdir(tmp_path)

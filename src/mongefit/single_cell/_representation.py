"""What a cell is to the map: columns of an array in obsm, X itself, or components of X."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from mongefit._fitting.diagnose import evenly
from mongefit._runtime import require_memory
from mongefit._validation import check_count, check_points
from mongefit.errors import DataError, Option, OptionError, Suggestion, warn_user, wrong_option
from mongefit.single_cell._columns import listed
from mongefit.single_cell._diffusion import DiffusionMap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from pandas import Index

DEFAULT = "X_pca"
LOADINGS = "PCs"


@dataclasses.dataclass(frozen=True, eq=False)
class Components:
    """Principal components (X − mean) · loadings of some genes, in the order of the arrays.

    ``mean`` is that of X over the cells they were computed from, [g]; ``loadings`` are [g, k].
    """

    genes: tuple[str, ...] = dataclasses.field(repr=False)
    mean: NDArray[np.float64] = dataclasses.field(repr=False)
    loadings: NDArray[np.float64] = dataclasses.field(repr=False)

    def project(self, X: Any) -> NDArray[np.float64]:
        """Components of the rows of a matrix, dense or sparse, of the same genes."""
        return np.asarray(X @ self.loadings) - self.mean @ self.loadings


_ANCHORS = 32


@dataclasses.dataclass(frozen=True, eq=False)
class Fingerprint:
    """What tells the components of a fit from others of the same name.

    Components are fixed only up to signs and rotations: those of another run of a PCA are other
    coordinates. It holds some cells of the fit with their coordinates, [k, d], and some genes with
    their loadings, [g, d], none where there are no loadings.
    """

    cells: tuple[str, ...]
    coordinates: NDArray[np.float64]
    genes: tuple[str, ...]
    loadings: NDArray[np.float64]

    @classmethod
    def of(
        cls, adata: AnnData, name: str, rows: NDArray[np.int64], points: NDArray[np.float64]
    ) -> Fingerprint:
        """Of an array in obsm, by some of the cells of a fit and the genes with most weight."""
        some = evenly(len(rows), _ANCHORS)
        loadings = _stored_loadings(adata, name, points.shape[1])
        top = np.argsort(-np.linalg.norm(loadings, axis=1), kind="stable")[:_ANCHORS]
        cells = tuple(map(str, adata.obs_names[rows[some]]))
        genes = tuple(map(str, adata.var_names[top]))
        return cls(cells, points[some], genes, loadings[top])

    def check(self, adata: AnnData, representation: Representation) -> None:
        """Refuse cells whose components are not those of the fit; warn where that is not known."""
        where = representation.where
        known, rows = _both(self.cells, adata.obs_names)
        if len(rows):
            if not _same(representation.of(adata, rows), self.coordinates[known]):
                raise DataError(
                    f"{where} is not that of the fit: cell {self.cells[known[0]]!r}, for one, is "
                    "elsewhere in it. Signs or axes may have changed when it was computed again. "
                    "Use the coordinates of the fit, or fit again."
                )
            return
        loadings = _stored_loadings(adata, representation.name, self.coordinates.shape[1])
        known, rows = _both(self.genes, adata.var_names)
        if not len(loadings) or not len(rows):
            warn_user(
                f"None of the cells of the fit are here, and no loadings: whether {where} has the "
                "components of the fit could not be checked."
            )
        elif not _same(loadings[rows], self.loadings[known]):
            raise DataError(
                f"varm['PCs'] is not that of the fit: {where} has other components. Project the "
                "cells onto the components of the fit, or fit again."
            )


def _both(names: Sequence[str], index: Index) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which names an index holds, and where; none where some name is in it twice."""
    found = index.get_indexer(list(names)) if index.is_unique else np.full(len(names), -1)
    known = np.flatnonzero(found >= 0)
    return known, found[known]


def _stored_loadings(adata: AnnData, name: str, dim: int) -> NDArray[np.float64]:
    """Loadings of the components of a fit, [genes, d]; none if they are not stored."""
    if name != DEFAULT or LOADINGS not in adata.varm or adata.varm[LOADINGS].shape[1] < dim:
        return np.zeros((0, dim))
    return np.asarray(adata.varm[LOADINGS], dtype=np.float64)[:, :dim]


def _same(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Whether two arrays agree up to the rounding of a file."""
    return bool(np.abs(one - other).max() <= 1e-3 * max(np.abs(other).max(), 1e-300))


@dataclasses.dataclass(frozen=True, eq=False)
class Representation:
    """Where the coordinates of a cell come from.

    Attributes
    ----------
    name
        Name of an array in obsm, or "X".
    n_components
        How many of its first columns are used; None for all.
    pca
        Components of X that `fit` computed; None where the columns are used as they are.
    fingerprint
        What tells an array in obsm from another of the same name; None for X, whose genes have
        names, and for models of earlier releases.
    layer
        The layer that stands for X; None for X itself.
    diffusion
        Diffusion components of the cells of the fit, which stand for the columns; None for these.
    """

    name: str
    n_components: int | None = None
    pca: Components | None = None
    fingerprint: Fingerprint | None = None
    layer: str | None = None
    diffusion: DiffusionMap | None = None

    @property
    def where(self) -> str:
        """What messages call it."""
        return _expression_name(self.layer) if self.name == "X" else f"obsm[{self.name!r}]"

    def text(self, count: int) -> str:
        """What tables call it, with so many coordinates."""
        if self.diffusion is not None:
            return f"{count} diffusion components"
        return f"{count} components" if self.name in (DEFAULT, "X") else f"{count} of {self.name}"

    def marked(
        self, adata: AnnData, rows: NDArray[np.int64], points: NDArray[np.float64]
    ) -> Representation:
        """With the fingerprint of the cells of a fit; X needs none."""
        if self.name == "X":
            return self
        kept = Fingerprint.of(adata, self.name, rows, points)
        return dataclasses.replace(self, fingerprint=kept)

    def of(self, adata: AnnData, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Coordinates of some cells, [n, d]."""
        found = self._columns(adata, rows)
        return found if self.diffusion is None else self.diffusion.project(found)

    def diffused(
        self, adata: AnnData, rows: NDArray[np.int64], n_components: int
    ) -> Representation:
        """Diffusion components of some cells instead."""
        size = check_count(n_components, "diffusion", minimum=1)
        found = DiffusionMap.of(self._columns(adata, rows), size)
        return dataclasses.replace(self, diffusion=found)

    def _columns(self, adata: AnnData, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The columns of some cells before diffusion."""
        if self.name == "X" and self.pca is not None:
            genes = _gene_rows(adata, self.pca.genes)
            found = self.pca.project(_expression(adata, rows, self.layer)[:, genes])
        else:
            is_x = self.name == "X"
            array = _expression(adata, rows, self.layer) if is_x else _obsm(adata, self.name, rows)
            found = check_points(array, self.where)
        if self.n_components is None:
            return found
        if found.shape[1] < self.n_components:
            raise DataError(
                "{where} has {count} columns; {option} needs as many. Ask for fewer.",
                where=self.where, count=found.shape[1],
                option=Option("n_components", self.n_components),
            )  # fmt: skip
        return np.ascontiguousarray(found[:, : self.n_components])

    def describe(self) -> tuple[dict[str, Any], dict[str, NDArray[np.float64]]]:
        """What a model file keeps of it: entries of the header, and arrays."""
        header: dict[str, Any] = {"use_rep": self.name, "n_components": self.n_components}
        tensors: dict[str, NDArray[np.float64]] = {}
        if self.layer is not None:
            header["layer"] = self.layer
        if self.pca is not None:
            header["genes"] = list(self.pca.genes)
            tensors |= {"mean": self.pca.mean, "loadings": self.pca.loadings}
        if (found := self.diffusion) is not None:
            header["diffusion"] = len(found.values)
            for field in dataclasses.fields(found):
                tensors[f"diffusion_{field.name}"] = getattr(found, field.name)
        if (kept := self.fingerprint) is not None:
            header["fingerprint"] = {"cells": list(kept.cells), "genes": list(kept.genes)}
            tensors |= {"anchors": kept.coordinates, "anchor_loadings": kept.loadings}
        return header, tensors

    @classmethod
    def restore(
        cls, header: dict[str, Any], tensors: dict[str, np.ndarray], *, dim: int
    ) -> Representation:
        """The inverse of `describe`, for a model of so many features."""
        n_components = header["n_components"]
        columns, diffusion = dim, None
        shapes: dict[str, tuple[int, ...]] = {}
        if "diffusion" in header:
            names = [field.name for field in dataclasses.fields(DiffusionMap)]
            diffusion = DiffusionMap(*(tensors[f"diffusion_{name}"] for name in names))
            size, columns = diffusion.anchors.shape
            for name, shape in zip(
                names, ((size, columns), (size, dim), (dim,), (size,)), strict=True
            ):
                shapes[f"diffusion_{name}"] = shape
        if n_components is not None and n_components != columns:
            raise ValueError(f"{n_components} components for {columns} features")
        layer = header.get("layer")
        if not isinstance(layer, str | None):
            raise ValueError("layer is not text")
        pca = fingerprint = None
        if "genes" in header:
            genes = tuple(map(str, header["genes"]))
            pca = Components(genes, tensors["mean"], tensors["loadings"])
            shapes |= {"mean": (len(genes),), "loadings": (len(genes), columns)}
        if "fingerprint" in header:
            kept = header["fingerprint"]
            cells, genes = (tuple(map(str, kept[key])) for key in ("cells", "genes"))
            fingerprint = Fingerprint(cells, tensors["anchors"], genes, tensors["anchor_loadings"])
            shapes |= {"anchors": (len(cells), dim), "anchor_loadings": (len(genes), dim)}
        for name, shape in shapes.items():
            found, what = tensors[name], f"finite float64 numbers of shape {shape}"
            if found.shape != shape or found.dtype != np.float64 or not np.all(np.isfinite(found)):
                raise ValueError(f"single_cell.{name} must be {what}")
        if tensors.keys() - shapes.keys():
            raise ValueError("a tensor does not belong there")
        return cls(header["use_rep"], n_components, pca, fingerprint, layer, diffusion)


def choose_representation(
    adata: AnnData,
    rows: NDArray[np.int64],
    *,
    use_rep: str | None,
    pca: int | None,
    n_components: int | None,
    layer: str | None = None,
    diffusion: int | None = None,
) -> Representation:
    """The representation that is asked for; components are computed from the cells ``rows``."""
    found = _choose_columns(
        adata, rows, use_rep=use_rep, pca=pca, n_components=n_components, layer=layer
    )
    return found if diffusion is None else found.diffused(adata, rows, diffusion)


def _choose_columns(
    adata: AnnData,
    rows: NDArray[np.int64],
    *,
    use_rep: str | None,
    pca: int | None,
    n_components: int | None,
    layer: str | None,
) -> Representation:
    if n_components is not None:
        check_count(n_components, "n_components", minimum=1)
    if not isinstance(layer, str | None):
        raise wrong_option("layer", "the name of one layer", layer)
    if not isinstance(use_rep, str | None):
        raise wrong_option("use_rep", "the name of one array of obsm, or 'X'", use_rep)
    if layer is not None and pca is None and use_rep != "X":
        raise OptionError(
            "{layer} stands for X, which is not used: give {pca} or {use_rep} with it.",
            layer=Option("layer", layer), pca=Option("pca", 10), use_rep=Option("use_rep", "X"),
        )  # fmt: skip
    if pca is None:
        name = DEFAULT if use_rep is None else use_rep
        return Representation(name, n_components, layer=layer)
    if use_rep is not None or n_components is not None:
        raise OptionError(
            "{pca} computes its own components: leave out {use_rep} and {n_components}.",
            **{name: Option(name) for name in ("pca", "use_rep", "n_components")},
        )
    size = check_count(pca, "pca", minimum=1)
    X = _expression(adata, rows, layer)
    if size >= min(X.shape):
        needed = "below the numbers of cells and of genes, {} and {}".format(*X.shape)
        raise wrong_option("pca", needed, size)
    from sklearn.decomposition import PCA

    # The one solver that takes sparse matrices of any number of genes, without filling them in.
    found = PCA(size, svd_solver="arpack", random_state=0).fit(X)
    genes, loadings = tuple(map(str, adata.var_names)), np.ascontiguousarray(found.components_.T)
    return Representation("X", pca=Components(genes, found.mean_, loadings), layer=layer)


def _obsm(adata: AnnData, name: str, rows: NDArray[np.int64]) -> Any:
    if name not in adata.obsm:
        raise DataError(
            "obsm[{name!r}] not found. Keys: {keys}.{hint} With {pca} components are computed from "
            "X.",
            name=name, keys=listed(adata.obsm), hint=Suggestion.of("use_rep", name, adata.obsm),
            pca=Option("pca", 10),
        )  # fmt: skip
    array = adata.obsm[name]
    found = (array.to_numpy() if hasattr(array, "to_numpy") else array)[rows]
    _check_finite(adata, rows, found, f"obsm[{name!r}]")
    return found


def gene_expression(adata: AnnData, rows: NDArray[np.int64], layer: str | None = None) -> Any:
    """X or a layer of some cells, for statistics of genes; as `_expression`, in other words."""
    if adata.n_vars == 0 or (layer is None and adata.X is None):
        raise DataError(
            f"This AnnData has no {'genes' if adata.n_vars == 0 else 'X'}, and genes are what is "
            "asked for. Give the AnnData with the normalised expression of the same cells."
        )
    return _expression(adata, rows, layer, otherwise="")


def _expression_name(layer: str | None) -> str:
    return "X" if layer is None else f"layers[{layer!r}]"


def _expression(
    adata: AnnData,
    rows: NDArray[np.int64],
    layer: str | None = None,
    *,
    otherwise: str = ", or use {use_rep}",
) -> Any:
    """X or a layer of some cells, in float64, dense or sparse by rows; raw counts are refused."""
    where = _expression_name(layer)
    if layer is not None and layer not in adata.layers:
        raise DataError(
            "layers[{name!r}] not found. Keys: {keys}.{hint}",
            name=layer, keys=listed(adata.layers),
            hint=Suggestion.of("layer", str(layer), adata.layers),
        )  # fmt: skip
    matrix = adata.X if layer is None else adata.layers[layer]
    if matrix is None:
        raise DataError(
            "This AnnData has no X. Name an array of obsm by {use_rep}.", use_rep=Option("use_rep")
        )
    # Backed sparse matrices are of no class of SciPy's, but say in the same way how they are kept.
    if not scipy.sparse.issparse(matrix) and getattr(matrix, "format", "") not in ("csr", "csc"):
        needed = 3 * 8 * len(rows) * adata.n_vars
        require_memory(needed, f"Computing with {where} needs about", "Use fewer genes.")
    # Through a view, which reads these rows only where X is backed by a file.
    X = adata[rows].X if layer is None else adata[rows].layers[layer]
    X = scipy.sparse.csr_matrix(X) if scipy.sparse.issparse(X) else np.asarray(X)
    if X.dtype.kind not in "iuf":
        raise DataError(f"{where} holds values of type {X.dtype}; real numbers are needed.")
    X = X.astype(np.float64)
    values = _check_finite(adata, rows, X, where)
    if np.all(values >= 0) and np.all(values == np.rint(values)) and np.any(values > 1):
        raise DataError(
            "{where} looks like raw counts (whole numbers up to {largest:.0f}). Normalise it and "
            f"take logarithms first (scanpy.pp.normalize_total, scanpy.pp.log1p){otherwise}.",
            where=where, largest=values.max(), use_rep=Option("use_rep", DEFAULT),
        )  # fmt: skip
    return X


def _check_finite(adata: AnnData, rows: NDArray[np.int64], found: Any, where: str) -> NDArray[Any]:
    """The values of a matrix, dense or sparse; it is refused if some are NaN or infinite."""
    is_sparse = scipy.sparse.issparse(found)
    values = np.asarray(found.data if is_sparse else found)
    if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
        dense = found.toarray() if is_sparse else values
        bad = rows[~np.all(np.isfinite(dense), axis=1)]
        raise DataError(
            f"{where} is NaN or infinite in {len(bad)} cells: rows {listed(bad.tolist(), 5)} "
            f"(first: {adata.obs_names[bad[0]]!r}). Remove these cells or fill them in."
        )
    return values


def _gene_rows(adata: AnnData, genes: tuple[str, ...]) -> Any:
    """Where the genes of a model are among those of ``adata``."""
    if tuple(adata.var_names) == genes:
        return slice(None)
    if not adata.var_names.is_unique:
        raise DataError(
            "Names of genes occur twice, and they differ from those of the model. Make them unique "
            "with adata.var_names_make_unique()."
        )
    found = adata.var_names.get_indexer(list(genes))
    if np.any(found < 0):
        first = genes[int(np.argmax(found < 0))]
        raise DataError(
            f"{np.sum(found < 0)} of {len(genes)} genes of the model are missing (first: "
            f"{first!r}). Give the cells with all genes that it was fitted on."
        )
    return found

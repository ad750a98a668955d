"""Products and transposes of matrices."""

from __future__ import annotations

from llvmlite import ir

from flame_rl.learner.kernels.emit import LANES, REGISTERS, Array, Function, Index, Vector

# By the number of vectors beside each other, the numbers of rows of a result that are summed in
# registers at once: so many sums that a multiplication need not wait for the one before, and that
# few numbers are loaded for each.
_MANY = {4: (6, 4, 1), 3: (8, 4, 1), 2: (8, 4, 1), 1: (12, 4, 1)}
_ROWS = _MANY if REGISTERS >= 32 else {2: (6, 4, 1), 1: (12, 4, 1)}
_WIDEST = max(_ROWS)


def write_product(module: ir.Module) -> ir.Function:
    """c = start + a b, for a [m, k], b [k, n] and c [m, n], all with any strides between rows, and
    a with any between columns. The row `start` is added to each row of c; with a `start_step` of 0
    instead of 1 it has only `LANES` numbers, the same for all columns. Rows of c that are padded to
    whole vectors are padded with zeros."""
    blocks = {
        (rows, vectors): _write_block(module, rows, vectors)
        for vectors, several in _ROWS.items()
        for rows in several
    }
    f = Function(
        module,
        "product",
        **dict.fromkeys(("c", "a", "b", "start"), "array"),
        **dict.fromkeys(("c_row", "a_row", "a_column", "b_row", "start_step"), "integer"),
        **dict.fromkeys(("m", "k", "n"), "integer"),
    )
    c, a, b, start, c_row, a_row, a_column, b_row, start_step, m, k, n = f.arguments

    def columns(first: Index, vectors: int, last: Index) -> None:
        """The columns from the first one on; the last vector has `last` of them."""

        def call(count: int, row: Index) -> None:
            f.call(
                blocks[count, vectors],
                *(c + (row * c_row + first), a + row * a_row, b + first),
                start + first * start_step,
                *(c_row, a_row, a_column, b_row, start_step, k, last),
                c_row - first - (vectors - 1) * LANES,
            )

        done = f.integer(0)
        for rows in _ROWS[vectors]:
            with f.loop(m, step=rows, first=done) as row:
                call(rows, row)
            done = row

    widest = _WIDEST * LANES
    whole = (n - 1) // widest * widest
    with f.loop(whole, step=widest) as first:
        columns(first, _WIDEST, f.integer(LANES))
    rest = n - whole
    vectors = (rest + (LANES - 1)) // LANES
    for count in _ROWS:
        with f.when_equal(vectors, count):
            columns(whole, count, rest - (count - 1) * LANES)
    return f.end()


def write_row_sums(
    f: Function, result: Array, x: Array, x_row: Index | int, rows: Index, width: Index | int
) -> None:
    """result = the sum of the rows of x, [rows, width], with any stride between rows."""
    zero, strides = f.constants(0.0), (width, 0, 0, x_row, 0)
    f.call("product", result, f.constants(1.0), x, zero, *strides, 1, rows, width)


def _write_block(module: ir.Module, rows: int, vectors: int) -> ir.Function:
    """A few rows and vectors of c; see `write_product`. The last vector has `last` columns, and its
    row in c has room for `room` numbers."""
    f = Function(
        module,
        f"block_{rows}_{vectors}",
        **dict.fromkeys(("c", "a", "b", "start"), "array"),
        **dict.fromkeys(("c_row", "a_row", "a_column", "b_row", "start_step"), "integer"),
        **dict.fromkeys(("k", "last", "room"), "integer"),
    )
    c, a, b, start, c_row, a_row, a_column, b_row, start_step, k, last, room = f.arguments
    kept = f.kept_mask(f.first_lanes(last))

    def row_of(array: Array, step: Index | int = 1) -> list[Vector]:
        masks = [None] * (vectors - 1) + [f.mask_again(kept)]
        return [
            (array + f.integer(LANES * place) * step).load(mask) for place, mask in enumerate(masks)
        ]

    with f.loop_with(k, row_of(start, start_step) * rows) as (index, sums, results):
        right = row_of(b + index * b_row)
        for row in range(rows):
            left = (a + (a_row * row + index * a_column)).number()
            for place in range(vectors):
                results.append(left.times_plus(right[place], sums[row * vectors + place]))

    def store(last_mask: ir.Value | None) -> None:
        masks = [None] * (vectors - 1) + [last_mask]
        for row in range(rows):
            for place, mask in enumerate(masks):
                (c + (c_row * row + LANES * place)).store(sums[row * vectors + place], mask)

    with f.if_whole(room) as (whole, partly):
        with whole:
            store(None)
        with partly:
            store(f.first_lanes(room))
    return f.end()


def write_transpose(module: ir.Module) -> ir.Function:
    """t = a^T, for a [m, n] without gaps, and t [n, m] with a stride between rows."""
    f = Function(
        module, "transpose", t="array", a="array", t_row="integer", m="integer", n="integer"
    )
    t, a, t_row, m, n = f.arguments
    up = LANES - 1
    with f.loop((m + up) // LANES) as block:
        first_row = block * LANES
        rows = m - first_row
        with f.loop((n + up) // LANES) as column_block:
            first = column_block * LANES
            columns = n - first
            source, target = a + (first_row * n + first), t + (first * t_row + first_row)
            with f.if_whole(rows, columns) as (whole, partly):
                with whole:
                    tile = [(source + n * row).load() for row in range(LANES)]
                    for row, vector in enumerate(_transposed(tile)):
                        (target + t_row * row).store(vector)
                with partly:
                    row_mask, mask = f.first_lanes(rows), f.first_lanes(columns)
                    tile = [
                        (source + n * row).load(f.only_if_below(mask, row, rows))
                        for row in range(LANES)
                    ]
                    for row, vector in enumerate(_transposed(tile)):
                        own = f.only_if_below(row_mask, row, columns)
                        (target + t_row * row).store(vector, own)
    return f.end()


def _transposed(tile: list[Vector]) -> list[Vector]:
    """Rows as columns: pairs of vectors exchange halves, then quarters, and so on."""
    width = LANES // 2
    while width:
        low = [lane + (LANES - width) * (lane // width % 2) for lane in range(LANES)]
        high = [lane + width for lane in low]
        for row in range(LANES):
            if row // width % 2 == 0:
                first, second = tile[row], tile[row + width]
                tile[row] = first.shuffle(second, low)
                tile[row + width] = first.shuffle(second, high)
        width //= 2
    return tile

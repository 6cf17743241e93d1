// Points in square cells, so that the one nearest to a place is found among a few of a hundred thousand.

export class Grid {
  /**
   * @param {ArrayLike<number>} xs
   * @param {ArrayLike<number>} ys
   * @param {number} size coordinates are from 0 to this
   */
  constructor(xs, ys, size) {
    this.xs = xs;
    this.ys = ys;
    this.side = Math.max(1, Math.min(512, Math.ceil(Math.sqrt(xs.length / 2))));
    this.cell = (size + 1) / this.side;
    // a counting sort: the points of cell c are order[starts[c]] to order[starts[c + 1] - 1]
    this.starts = new Int32Array(this.side * this.side + 1);
    const cells = new Int32Array(xs.length);
    for (let n = 0; n < xs.length; n++) {
      cells[n] = this.place(ys[n]) * this.side + this.place(xs[n]);
      this.starts[cells[n] + 1]++;
    }
    for (let c = 0; c < this.side * this.side; c++) this.starts[c + 1] += this.starts[c];
    this.order = new Int32Array(xs.length);
    const next = this.starts.slice();
    for (let n = 0; n < xs.length; n++) this.order[next[cells[n]]++] = n;
  }

  /** The row or column of a coordinate. @param {number} at */
  place(at) {
    return Math.max(0, Math.min(this.side - 1, Math.floor(at / this.cell)));
  }

  /**
   * The point nearest to a place, if it is not farther than `reach`; -1 if there is none. Of equally near ones, the
   * last: it is drawn on top.
   * @param {number} x @param {number} y @param {number} reach
   */
  nearest(x, y, reach) {
    let found = -1;
    let best = reach * reach;
    const columns = [this.place(x - reach), this.place(x + reach)];
    for (let row = this.place(y - reach); row <= this.place(y + reach); row++) {
      for (let column = columns[0]; column <= columns[1]; column++) {
        const cell = row * this.side + column;
        for (let at = this.starts[cell]; at < this.starts[cell + 1]; at++) {
          const n = this.order[at];
          const distance = (this.xs[n] - x) ** 2 + (this.ys[n] - y) ** 2;
          if (distance < best || (distance === best && n > found)) {
            best = distance;
            found = n;
          }
        }
      }
    }
    return found;
  }
}

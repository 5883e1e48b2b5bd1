// Lines that two texts share and that only one has: the shortest script (Eugene W. Myers: "An O(ND) difference
// algorithm and its variations", Algorithmica 1986).

const FAR = 3000; // Texts that differ in more lines than this are shown one after the other.

// [["same" | "removed" | "added", line, number in its own text], …]
function diff(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  const moves = walk(a, b) ?? [...a.map(() => "removed"), ...b.map(() => "added")];
  let [i, j] = [0, 0];
  return moves.map((move) => {
    if (move === "removed") return [move, a[i++], i];
    if (move === "same") i++;
    return [move, b[j++], j];
  });
}

function walk(a, b) {
  const offset = Math.min(a.length + b.length, FAR) + 1;
  const ends = new Int32Array(2 * offset + 1);
  const history = [];
  for (let d = 0; d < offset; d++) {
    history.push(ends.slice());
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && ends[offset + k - 1] < ends[offset + k + 1]);
      let x = down ? ends[offset + k + 1] : ends[offset + k - 1] + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      ends[offset + k] = x;
      if (x >= a.length && x - k >= b.length) return back(history, a.length, b.length, offset);
    }
  }
  return null;
}

function back(history, x, y, offset) {
  const moves = [];
  for (let d = history.length - 1; d >= 0; d--) {
    const [ends, k] = [history[d], x - y];
    const down = k === -d || (k !== d && ends[offset + k - 1] < ends[offset + k + 1]);
    const startX = d ? (down ? ends[offset + k + 1] : ends[offset + k - 1]) : 0;
    const startY = d ? startX - (down ? k + 1 : k - 1) : 0;
    while (x > startX && y > startY) {
      moves.push("same");
      x--;
      y--;
    }
    if (d) moves.push(down ? "added" : "removed");
    [x, y] = [startX, startY];
  }
  return moves.reverse();
}

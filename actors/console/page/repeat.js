// Ask again and again while somebody looks: not in a tab that nobody sees, and never twice at once.

export function repeat(work, everyMs, failed) {
  let timer = 0;
  let ended = false;
  let working = false;
  async function turn() {
    if (!document.hidden) {
      working = true;
      try {
        await work();
      } catch (error) {
        if (!ended) failed(error);
      }
      working = false;
    }
    if (!ended) timer = setTimeout(turn, everyMs);
  }
  const seen = () => {
    if (document.hidden || ended || working) return;
    clearTimeout(timer);
    turn();
  };
  document.addEventListener("visibilitychange", seen);
  turn();
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
  };
}

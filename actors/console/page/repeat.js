// Ask again and again while somebody looks: not in a tab that nobody sees, and never twice at once.

export function repeat(work, everyMs, failed) {
  let timer = 0;
  let ended = false;
  async function turn() {
    if (!document.hidden) {
      try {
        await work();
      } catch (error) {
        failed(error);
      }
    }
    if (!ended) timer = setTimeout(turn, everyMs);
  }
  const seen = () => {
    if (document.hidden || ended) return;
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

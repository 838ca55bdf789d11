"use strict";
// Says so where the server does not answer what a page asks: nothing on the page would change, and nobody knew why.
(() => {
  const ask = window.fetch;
  const AWAY = "The dashboard does not answer, so that this page does not change. Is whorl dashboard still running, and "
    + "the network there? Load the page again when it is.";
  const tell = text => {
    const box = document.getElementById("unanswered");
    if (box && box.textContent !== text) box.textContent = text;
    if (box) box.hidden = !text;
  };
  window.fetch = async (...asked) => {
    if (!String((asked[0] && asked[0].url) || asked[0]).includes("_dash-update-component")) return ask(...asked);
    try {
      const answer = await ask(...asked);
      const away = [502, 503, 504].includes(answer.status);  // a proxy says so of what is behind it
      tell(answer.status === 401 ? "The dashboard asks for its token again: load the page, and give it." : away ? AWAY : "");
      return answer;
    } catch (error) {
      tell(AWAY);
      throw error;
    }
  };
})();

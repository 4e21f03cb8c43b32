// The address that the browser shows is the one that apps on this side of a front can use.
"use strict";
for (const shown of document.querySelectorAll("[data-path]")) shown.textContent = location.origin + shown.dataset.path;
for (const code of document.querySelectorAll("[data-address]")) {
  code.textContent = code.textContent.replace(code.dataset.address, location.origin);
}
for (const button of document.querySelectorAll("button.copy")) {
  if (!navigator.clipboard) button.hidden = true; // there is none on a page without TLS, but for loopback
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.of).textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

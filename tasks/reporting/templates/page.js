"use strict";
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const header = button.closest("th");
    const isText = header.classList.contains("text");
    const before = header.getAttribute("aria-sort");
    const ascending = before === "none" ? isText : before === "descending";
    for (const other of header.parentElement.cells) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const body = header.closest("table").tBodies[0];
    const value = (row) => row.cells[header.cellIndex].dataset.value;
    const compare = (left, right) => {
      if (value(left) === "" || value(right) === "") return (value(left) === "") - (value(right) === "");
      const order = isText
        ? value(left).localeCompare(value(right), undefined, { numeric: true })
        : Number(value(left)) - Number(value(right));
      return ascending ? order : -order;
    };
    body.append(...[...body.rows].sort(compare));
  });
}

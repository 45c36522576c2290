// Order of the results of the manual's search: Sphinx's scores, with pages
// whose words are those of many questions behind the pages of operators.
var PROBLEMS = ["admin/troubleshooting"];
var BEHIND = [
  "admin/adopt",
  "admin/index",
  "reference/cli",
  "reference/openstack",
  "releasenotes",
];
var Scorer = {
  score: (result) => {
    const [page, , , , score, , kind] = result;
    if (kind !== "text") return score;
    // Its first table leads to the section that answers.
    if (PROBLEMS.includes(page)) return 15.5;
    if (/^(contributor|project)\//.test(page)) return score - 10;
    return BEHIND.includes(page) ? score - 2 : score;
  },
  // The values of Sphinx.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

if (data.kind === "report") reportPage(data);
else comparisonPage(data);
performance.mark("page-ready");

"""All output for people: tables on the terminal, the report, plots and TensorBoard.

tables     table.py: the one table model, with its terminal and Markdown forms; HTML is in templates/
a run      run.py at its end; tensorboard.py: everything except the curves
a sweep    sweep.py at its end
a study    comparison_tables.py: tables, and the terminal; html.py (templates/): the page, and notebooks;
           figures.py with curves.py: the pictures; report.py writes them all, the Markdown report and the
           TensorBoard run `_report`
pictures   picture.py: size, fonts, axes, rendering, colours; rates.py: curves of rates, grouped bars
"""

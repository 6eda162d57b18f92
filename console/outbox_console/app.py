"""The web application: who asks, which screen or action answers, and what each answer carries."""

import asyncio
import contextlib
import html
import logging
import os
import re
import time

import jinja2
import markupsafe
import psycopg
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from . import actions, database, words
from .access import COOKIE, NOTICE, Access, is_foreign, is_forged, seal, unseal
from .actions import ACTIONS, Form, Refused
from .screens import SCREENS

HERE = os.path.dirname(os.path.abspath(__file__))
LOG = logging.getLogger("outbox-console")
LARGEST_FORM = 256 * 1024
SLOWEST_FORM = 15   # seconds
LONGEST_NOTICE = 700   # characters: a cookie has 4 kB
HOST = re.compile(r"\[?([A-Za-z0-9._:-]+?)\]?(?::\d+)?")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
                               "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
}


def templates():
    """Jinja, which escapes everything, and shows characters that hide."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.join(HERE, "templates")), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda v: "" if v is None else v if hasattr(v, "__html__") or not isinstance(v, str) else words.visible(v))
    # What a form brings back has to be what it was.
    environment.filters.update(as_it_is=lambda v: markupsafe.escape("" if v is None else v), number=words.number, size=words.size, seconds=words.seconds, span=words.span, short=words.short)
    environment.globals.update(count=words.count, age=words.age, link=actions.link, page=actions.page)
    return environment


class Console:
    """The application and what its answers need."""

    def __init__(self, settings):
        self.settings, self.access, self.templates = settings, Access(settings), templates()
        self.database = database.Database(settings.database, settings)
        self.reading = database.Database(settings.read_only_database, settings) if settings.read_only_database else self.database
        self.signing_in = asyncio.Semaphore(1)

    def render(self, request, template, user, code=200, **context):
        """A page."""
        notice = unseal("notice", request.cookies.get(NOTICE))
        text = self.templates.get_template(template).render(
            user=user, path=request.url.path, notice=notice, begun=request.state.begun, clock=time.perf_counter, **context)
        response = HTMLResponse(text, code)
        if notice:
            response.delete_cookie(NOTICE, path="/")
        return response

    def problem(self, request, user, status, title, why):
        """A page that says what is wrong.  It is asked for again by itself where that may help."""
        return self.render(request, "problem.html", user, status, title=title, why=why, again=status == 503)

    async def answer(self, request):
        """The answer to any request for a page."""
        request.state.begun = time.perf_counter()
        user, fresh = self.access.user(request)
        if user is None:
            if self.settings.passwords:
                return RedirectResponse("/sign-in", 303)
            return PlainTextResponse("This console is reached through its proxy, which says which user asks.\n", 403)
        try:
            try:
                response = await self.routed(request, user)
            except (KeyError, jinja2.UndefinedError) as e:
                async with self.source(user).session() as session:
                    other = await session.other_version()
                if not other:
                    raise
                LOG.error("%s: not in what the database answered: %s", request.url.path, e)
                response = self.problem(request, user, 503, "This cannot be shown", "An answer of the database had no %s. %s" % (e, other))
        except Refused as e:
            response = self.problem(request, user, 409 if request.method == "POST" else 404, "This cannot be done", str(e))
        except database.Away as e:
            LOG.warning("the database cannot be asked: %s", e)
            response = self.problem(request, user, 503, "The database cannot be asked", str(e))
        if fresh:
            self.access.set_cookie(response, COOKIE, seal("session", fresh), 12 * 3600)
        return response

    def source(self, user):
        """The database as the role of this user."""
        return self.database if user.operates else self.reading

    async def routed(self, request, user):
        """A screen, the question of an action, or the action."""
        form = Form.parse(request.url.query, request.path_params.items())
        source = self.source(user)
        path = request.scope["endpoint_path"]
        if path in SCREENS:
            template, screen = SCREENS[path]
            async with source.session() as session:
                context = await screen(session, form)
            if template is None:
                return Response(context, media_type="application/octet-stream", headers={
                    "Content-Disposition": 'attachment; filename="payload"', "Content-Security-Policy": "sandbox; default-src 'none'"})
            if context.get("go"):
                return RedirectResponse(context["go"], 303)
            return self.render(request, template, user, screen=path, **context)
        name = request.path_params["action"]
        if name not in ACTIONS:
            raise Refused("There is no such action.")
        if not user.operates:
            return self.problem(request, user, 403, "You may look, and change nothing", "Ask an operator to do it.")
        if request.method == "POST":
            form = await self.form(request)
            if is_forged(request, form, user):
                return self.problem(request, user, 403, "This form is not of this session",
                                    "Nothing was changed. Go back, load the page again, and repeat it.")
        async with source.session() as session:
            plan = await ACTIONS[name](session, form)
            # A form that is filled in is shown as a plan first, and then sent by a form that is sure.
            if request.method != "POST" or not plan.ready or not form.get("sure"):
                kept = [(n, v) for n, v in form.pairs if n not in ("token", "action", "sure") and n not in [f.name for f in plan.fields]]
                return self.render(request, "confirm.html", user, plan=plan, action=name, kept=kept)
            return await self.carry_out(request, user, session, name, plan)

    async def carry_out(self, request, user, session, name, plan):
        """Does what a plan says, and goes where its result is shown."""
        what = " ".join(plan.title.split())
        try:
            values, warnings = await session.act(user.name, plan.calls, plan.alone)
        except psycopg.Error as e:
            LOG.info("%s could not: %s (%s)", user.name, what, e.sqlstate)
            return self.problem(request, user, 409, "Nothing was changed", await session.words(e))
        LOG.info("%s: %s (%s)", user.name, what, name)
        if plan.secret:
            return self.render(request, "secret.html", user, plan=plan, value=values[0])
        response = RedirectResponse(plan.next(values) if plan.next else plan.back, 303)
        self.access.set_cookie(response, NOTICE, seal("notice", " ".join([plan.done(values), *warnings])[:LONGEST_NOTICE]))
        return response

    @staticmethod
    async def form(request):
        """The form that a request brings."""
        body = b""
        try:
            async with asyncio.timeout(SLOWEST_FORM):
                async for part in request.stream():
                    body += part
                    if len(body) > LARGEST_FORM:
                        raise Refused("The form is too large.")
        except TimeoutError as e:
            raise Refused("The form did not come in time.") from e
        return Form.parse(body.decode("utf-8", "replace"))

    async def sign_in(self, request):
        """Asks for a password, and judges it."""
        request.state.begun = time.perf_counter()
        if not self.settings.passwords:
            return RedirectResponse("/", 303)
        wrong = None
        if request.method == "POST":
            form = await self.form(request)
            if is_foreign(request):
                return PlainTextResponse("This form is of another site.\n", 403)
            async with self.signing_in:
                session = await asyncio.to_thread(self.access.sign_in, form.get("name"), form.get("password"))
                if not session:
                    await asyncio.sleep(0.5)
            if session:
                LOG.info("%s signs in", session["name"])
                response = RedirectResponse("/", 303)
                self.access.set_cookie(response, COOKIE, seal("session", session), 12 * 3600)
                return response
            LOG.info("a sign-in was refused")
            wrong = "There is no such user with this password."
        return self.render(request, "sign_in.html", None, 403 if wrong else 200, wrong=wrong)

    async def sign_out(self, request):
        """Forgets the cookie."""
        user, _ = self.access.user(request)
        form = await self.form(request)
        response = RedirectResponse("/sign-in", 303)
        if user and not is_forged(request, form, user):
            response.delete_cookie(COOKIE, path="/")
        return response

    def route(self, path, methods):
        """A route whose answer knows its path."""
        async def answered(request):
            request.scope["endpoint_path"] = path
            return await self.answer(request)
        return Route(path, answered, methods=methods)

    @contextlib.asynccontextmanager
    async def lifespan(self, _):
        """Ends the connections with the application."""
        yield
        await self.database.close()
        await self.reading.close()

    def application(self):
        """The ASGI application."""
        routes = [self.route(path, ["GET"]) for path in SCREENS]
        routes += [self.route("/do/{action}", ["GET", "POST"]),
                   Route("/sign-in", self.sign_in, methods=["GET", "POST"]), Route("/sign-out", self.sign_out, methods=["POST"]),
                   Mount("/static", StaticFiles(directory=os.path.join(HERE, "static")))]
        app = Starlette(routes=routes, lifespan=self.lifespan, exception_handlers={404: self.not_found, Refused: self.refused, Exception: self.failed})
        return Guard(app, self.settings)

    async def not_found(self, request, _):
        """No such page."""
        return HTMLResponse("<!doctype html><title>outbox</title><p>There is no page %s. <a href='/'>Overview</a>"
                            % html.escape(request.url.path), 404)

    async def refused(self, _, why):
        """A form that is none, of a user that has not signed in."""
        return PlainTextResponse("%s\n" % why, 400)

    async def failed(self, request, _):
        """A fault of the console.  Starlette has logged it."""
        return PlainTextResponse("The console has a fault here. Its log says which.\n", 500)


class Guard:
    """Outermost: refuses other names of this host (a page of another site could ask by such a name), and adds headers."""

    def __init__(self, app, settings):
        self.app, self.names = app, set(settings.names)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        host = next((v.decode("latin-1") for n, v in scope["headers"] if n == b"host"), "")
        name = HOST.fullmatch(host)

        async def sending(message):
            if message["type"] == "http.response.start":
                given = {n.lower() for n, _ in message["headers"]}
                extra = dict(HEADERS)
                if not scope["path"].startswith("/static/"):
                    extra["Cache-Control"] = "no-store"
                message["headers"] = [*message["headers"], *((n.encode(), v.encode()) for n, v in extra.items()
                                                             if n.lower().encode() not in given)]
            await send(message)
        if "\0" in scope["path"]:
            await Response("A path has no such characters.\n", 400, media_type="text/plain")(scope, receive, sending)
            return
        if not name or name[1] not in self.names:
            response = Response("This console does not answer to that name: add it to \"names\" in its settings.\n", 421,
                                media_type="text/plain")
            await response(scope, receive, sending)
            return
        await self.app(scope, receive, sending)
